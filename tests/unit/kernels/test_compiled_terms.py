"""Numba's kernels, and Triton's in its interpreter, against the torch path in float64; Triton's compiled for an absent
GPU. All three, far from 0 and with small rests, against the definition."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from sdpo.kernels import choice, chunk_terms, policy
from sdpo.kernels.divergence import Divergence, distribution_divergence
from sdpo.kernels.lazy_logits import ResponseScores

SPECS = [
    *(Divergence("full", alpha, temperature=t) for alpha in (0.0, 0.3, 0.5, 1.0) for t in (1.0, 0.7)),
    *(
        Divergence("topk", alpha, 4, tail, chosen, 1.3)
        for alpha in (0.0, 0.5, 1.0)
        for tail, chosen in ((True, "student"), (False, "teacher"), (True, "union"))
    ),
    Divergence("token", 1.0, temperature=0.7),
]
WIDTH = 40  # not a multiple of the block of 16
IMPOSSIBLE = -1e30
# Triton looks at the variable when it is first imported, so the interpreter has a process of its own.
INTERPRET = """
import sys, torch
from sdpo.kernels import triton_terms
triton_terms.BLOCK = 16
cases = torch.load(sys.argv[1], weights_only=False)
found = {}
for name, (student, *rest) in cases.items():
    values = triton_terms.chunk_terms_(student, *rest)
    found[name] = values, student
torch.save(found, sys.argv[2])
"""


def random_case(spec, soft_cap=None, width=WIDTH, blocked=0):
    """`blocked` entries more are impossible on both sides."""
    generator = torch.Generator().manual_seed(width)
    student = 3.0 * torch.randn(3, width, generator=generator)
    teacher = student + torch.randn(3, width, generator=generator)
    if soft_cap is not None:
        student, teacher = (soft_cap * torch.tanh(side / soft_cap) for side in (student, teacher))
    ids = torch.randint(0, width, (3,), generator=generator)
    student, teacher = (torch.cat([side, torch.full((3, blocked), IMPOSSIBLE)], -1) for side in (student, teacher))
    return student, teacher, ids, spec, soft_cap


def same_case(spec):
    student, _, *rest = random_case(spec)
    return student, student.clone(), *rest


def in_a_wider_buffer(student, teacher, *rest):
    buffer = torch.full((2, student.shape[0], student.shape[1] + 8), 7.0)
    sides = buffer[..., : student.shape[1]]
    sides[0], sides[1] = student, teacher
    return sides[0], sides[1], *rest


# What is added to all logits of student and of teacher, and what the student gives to all but four tokens together.
FAR_ROWS = [(0, 0, 1e-2), (25, 25, 1.6e-6), (-25, 25, 2e-7), (1000, -1000, 1.6e-6), (-300, 700, 6e-8), (1000, 0, 1e-30)]
FAR = [spec for spec in SPECS if spec.temperature != 1.0]


def far_case(spec):
    """Its teacher gives about half to the others."""
    generator = torch.Generator().manual_seed(5)
    rows = []
    for own, other, tail in FAR_ROWS:
        student = 0.5 * torch.randn(WIDTH, generator=generator, dtype=torch.float64)
        student[4:] += math.log(tail) - student[4:].logsumexp(0) + student[:4].logsumexp(0)
        teacher = 0.5 * torch.randn(WIDTH, generator=generator, dtype=torch.float64)
        teacher[:4] += 2.5
        rows.append(torch.stack([student * spec.temperature + own, teacher + other]))
    student, teacher = torch.stack(rows, 1).float()
    return student, teacher, torch.arange(len(rows)) % 4, spec, None


def by_definition(student, teacher, ids, spec, _):
    """Divergence and its derivative by the student's logits, with sums over the entries that the formulas name."""
    student = student.double().requires_grad_()
    sides = [torch.log_softmax(side / spec.temperature, -1) for side in (student, teacher.double())]
    if spec.mode == "token":
        own, other = (side.gather(-1, ids[:, None])[:, 0] for side in sides)
        value = (own - other).detach() * own
    else:
        value = distribution_divergence(*(categories(side, sides, spec) for side in sides), spec.alpha)
    value.sum().backward()
    return value.detach(), student.grad


def categories(side, sides, spec):
    if spec.mode == "full":
        return side
    inside = torch.zeros_like(side, dtype=torch.bool)
    for name, chooser in zip(("student", "teacher"), sides, strict=True):
        if spec.support in (name, "union"):
            inside.scatter_(-1, chooser.detach().topk(spec.topk, -1).indices, True)
    few, rest = side.masked_fill(~inside, IMPOSSIBLE), side.masked_fill(inside, IMPOSSIBLE)
    if not spec.add_tail:
        return few.log_softmax(-1)
    return torch.cat([few, rest.logsumexp(-1, keepdim=True).clamp(min=math.log(1e-7))], -1)


CASES = {(spec, cap): random_case(spec, cap) for spec in SPECS for cap in (None, 10.0)}
CASES |= {("blocked", a): random_case(Divergence("full", a), blocked=40) for a in (0.0, 0.5, 1.0)}
CASES |= {("the same", s.mode): same_case(s) for s in (Divergence("topk", 0.5, 4), Divergence("token", 1.0))}
CASES |= {("far", spec): far_case(spec) for spec in FAR}
CASES["empty"] = torch.zeros(0, WIDTH), torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64), Divergence(), None
CASES["teacher only"] = (
    torch.tensor([[0.0, IMPOSSIBLE]]), torch.zeros(1, 2), torch.tensor([0]), Divergence("full", 0.0), None,
)  # fmt: skip
CASES["wider buffer"] = in_a_wider_buffer(*random_case(Divergence(), width=12))


@pytest.fixture(scope="module", params=["torch", "numba", "triton"])
def found(request, tmp_path_factory, repository):
    """Statistics and gradient of every case, by name."""
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    if request.param != "triton":
        from sdpo.kernels import numba_terms

        path = numba_terms if request.param == "numba" else chunk_terms
        copies = {name: (case[0].clone(), case[1].clone(), *case[2:]) for name, case in CASES.items()}
        return {name: finished(path.chunk_terms_(*case), case[0]) for name, case in copies.items()}
    folder = tmp_path_factory.mktemp("interpreter")
    torch.save(CASES, folder / "cases.pt")
    command = [sys.executable, "-c", INTERPRET, folder / "cases.pt", folder / "found.pt"]
    subprocess.run(command, check=True, cwd=repository, env=os.environ | {"TRITON_INTERPRET": "1"}, timeout=200)
    pairs = torch.load(folder / "found.pt", weights_only=False)
    return {name: finished(*pair) for name, pair in pairs.items()}


def finished(values, gradient):
    return values[:-1].double(), (gradient * values[-1][:, None]).double()


def exact(name):
    student, teacher, *rest = CASES[name]
    gradient = student.double()
    return finished(chunk_terms.chunk_terms_(gradient, teacher.double(), *rest), gradient)


@pytest.mark.parametrize("soft_cap", [None, 10.0])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_statistics_and_gradient_are_within_1e_5_of_the_torch_path_in_float64(found, spec, soft_cap):
    (values, gradient), (wanted, exact_gradient) = found[spec, soft_cap], exact((spec, soft_cap))
    torch.testing.assert_close(values, wanted, rtol=1e-5, atol=2e-6)
    assert (gradient - exact_gradient).norm() <= 1e-5 * exact_gradient.norm()


@pytest.mark.parametrize("spec", FAR, ids=str)
def test_neither_an_offset_of_all_logits_nor_a_small_tail_takes_digits(found, spec):
    """Row by row, or the large gradients would hide the others."""
    (values, gradient), (wanted, exact_gradient) = found["far", spec], by_definition(*CASES["far", spec])
    torch.testing.assert_close(values[0], wanted, rtol=1e-5, atol=2e-6)
    assert ((gradient - exact_gradient).norm(dim=-1) <= 1e-5 * exact_gradient.norm(dim=-1) + 1e-6).all()


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_entries_impossible_on_both_sides_take_no_gradient_and_change_nothing(found, alpha):
    values, gradient = found["blocked", alpha]
    narrow_values, narrow = found[Divergence("full", alpha), None]
    torch.testing.assert_close(values, narrow_values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient[:, :WIDTH], narrow, rtol=1e-5, atol=1e-7)
    assert (gradient[:, WIDTH:] == 0).all()


def test_what_only_the_teacher_can_say_makes_the_forward_kl_infinite(found):
    assert found["teacher only"][0][0].item() == torch.inf


@pytest.mark.parametrize("mode", ["topk", "token"])
def test_a_teacher_that_says_the_same_leaves_no_gradient(found, mode):
    values, gradient = found["the same", mode]
    assert values[0].abs().max() <= 1e-6
    assert gradient.abs().max() <= 1e-6  # and is a number: no division by a slope of 0


def test_no_tokens_are_no_launch(found):
    assert found["empty"][0].shape == (chunk_terms.STATISTICS - 1, 0)


def test_rows_of_a_wider_buffer_are_followed_by_their_stride(found):
    for value, wanted in zip(found["wider buffer"], exact("wider buffer"), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.temperature != 1.0], ids=str)
def test_rows_of_many_tiles_and_a_rest_are_within_1e_5_of_the_torch_path(spec):
    numba_terms = pytest.importorskip("sdpo.kernels.numba_terms", exc_type=ImportError)
    student, teacher, *rest = random_case(spec, width=2 * numba_terms.TILE + 9)
    gradient = student.double()
    wanted, exact_gradient = finished(chunk_terms.chunk_terms_(gradient, teacher.double(), *rest), gradient)
    values, own = finished(numba_terms.chunk_terms_(student, teacher, *rest), student)
    torch.testing.assert_close(values, wanted, rtol=1e-5, atol=4e-6)
    assert (own - exact_gradient).norm() <= 1e-5 * exact_gradient.norm()


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_number_that_is_none_on_either_side_makes_the_divergence_of_its_token_nan_and_no_other(bad, side):
    """The loss is then not finite and the optimizer does not step. Processors make NaN with a sign."""
    numba_terms = pytest.importorskip("sdpo.kernels.numba_terms", exc_type=ImportError)
    for spec in SPECS:
        student, teacher, *rest = random_case(spec, width=3000)
        (student, teacher)[side][1, 1234] = bad
        values = numba_terms.chunk_terms_(student, teacher, *rest)
        assert values[0].isnan().tolist() == [False, True, False], spec
        assert values[1, 1].isnan() or side == 1
        assert student[[0, 2]].isfinite().all()


def test_kernels_are_chosen_by_device_dtype_and_width():
    pytest.importorskip("triton")
    from sdpo.kernels import numba_terms, triton_terms

    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for device, dtype, width, chosen in (
        (cuda, torch.float32, 40, triton_terms),
        (cuda, torch.float64, 99_999, chunk_terms),
        (cpu, torch.float32, 99_999, numba_terms),
        (cpu, torch.float32, 40, chunk_terms),
        (cpu, torch.float64, 99_999, chunk_terms),
    ):
        logits = SimpleNamespace(device=device, is_cuda=device == cuda, dtype=dtype, shape=(1, width))
        assert choice.distillation_terms(logits) is chosen.chunk_terms_


@pytest.mark.parametrize("soft_cap", [None, 10.0])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_log_probs_and_entropy_have_the_values_and_gradients_of_the_torch_path(soft_cap, entropy_gradient, monkeypatch):
    pytest.importorskip("numba")
    logits, _, ids, *_ = random_case(None, width=500)
    results = []
    for dtype, fewest in ((torch.float64, 0), (torch.float32, 0)):
        monkeypatch.setattr(choice, "MIN_COMPILED", fewest)
        leaf = logits.to(dtype, copy=True).requires_grad_()
        scores = ResponseScores(leaf, None, None, 500, soft_cap=soft_cap)
        log_prob, entropy = policy.policy_terms(scores, ids, 0.8, entropy_gradient)
        (log_prob.exp().sum() + (0.3 * entropy.square().sum() if entropy_gradient else 0.0)).backward()
        results.append([t.detach().double() for t in (log_prob, entropy, leaf.grad)])
    for wanted, value in zip(*results, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)


def test_an_id_chosen_by_both_sides_counts_once():
    values = chunk_terms.chunk_terms_(
        torch.zeros(1, 4), torch.zeros(1, 4), torch.tensor([0]), Divergence("topk", 0.5, 2, True, "union")
    )
    assert values[4:6].tolist() == [[0.5], [0.5]]


TYPES = {
    "student": "*fp32", "student_stride": "i32", "width": "i32", "inverse_cap": "fp32", "teacher": "*fp32",
    "teacher_stride": "i32", "values": "*fp32", "sums": "*fp32", "tokens": "i32", "top": "*fp32", "factor": "*fp32",
    "inverse_temperature": "fp32", "alpha": "fp32", "KIND": "constexpr", "BLOCK": "constexpr",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["statistics", "forward", "reverse", "mixture", None])
def test_every_kernel_compiles_for_a_hopper_gpu_and_stays_in_registers(kind, monkeypatch, tmp_path):
    triton = pytest.importorskip("triton", reason="triton is not installed")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from sdpo.kernels import triton_terms

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = triton_terms._scaled_softmax if kind is None else triton_terms._row_terms
    constants = {"BLOCK": triton_terms.BLOCK} | ({} if kind is None else {"KIND": kind})
    source = ASTSource(kernel, {name: TYPES[name] for name in kernel.arg_names}, constants)
    compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": triton_terms.WARPS})
    assert len(compiled.asm["cubin"]) > 0
    assert "st.local" not in compiled.asm["ptx"]


def largest_ids(logits, k):
    numba_terms = pytest.importorskip("sdpo.kernels.numba_terms", exc_type=ImportError)
    ids = torch.empty(len(logits), k, dtype=torch.int64)
    tops = [numba_terms._largest_ids(x, own) for x, own in zip(logits.numpy(), ids.numpy(), strict=True)]
    assert torch.equal(torch.tensor(tops).nan_to_num(), logits.amax(-1).nan_to_num())
    return ids


SIZES = [(1, 1), (5, 5), (40, 40), (64, 3), (65, 64), (129, 100), (1000, 3), (5000, 100), (20_000, 100), (20_011, 157)]


@pytest.mark.parametrize(("width", "k"), SIZES)
def test_the_search_finds_the_largest_wherever_they_are(width, k):
    generator = torch.Generator().manual_seed(width)
    spread = torch.randn(5, width, generator=generator)
    spread[0] = torch.arange(width)
    spread[1] = -torch.arange(width)
    spread[2] = spread[2].round()  # ties
    spread[3] = torch.where(torch.arange(width) % 300 == 0, 1.0, -torch.inf)
    spread[4] = 0.0
    ids = largest_ids(spread, k)
    assert all(len(set(row)) == k for row in ids.tolist())
    assert torch.equal(spread.gather(-1, ids).sort(-1).values, spread.topk(k, -1).values.sort(-1).values)


def test_the_search_takes_nan_for_the_largest():
    logits = torch.randn(1, 20_000, generator=torch.Generator().manual_seed(0))
    logits[0, [7, 19_999]] = torch.nan
    assert {7, 19_999} < set(largest_ids(logits, 5)[0].tolist())
