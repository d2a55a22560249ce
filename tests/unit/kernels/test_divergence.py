from __future__ import annotations

import itertools
import math

import pytest
import torch

from sdpo.errors import ConfigError, ModelError
from sdpo.kernels import support
from sdpo.kernels.divergence import Divergence, distribution_divergence
from sdpo.kernels.lazy_logits import ResponseScores

GRID = [
    *(Divergence("full", alpha, temperature=0.7) for alpha in (0.0, 0.3, 0.5, 1.0)),
    *(
        Divergence("topk", alpha, k, tail, kind, 1.3)
        for alpha, k, tail, kind in itertools.product(
            (0.0, 0.3, 1.0), (1, 3, 11, 40), (True, False), ("student", "teacher", "union")
        )
    ),
    Divergence("token", 1.0, temperature=0.7),
]


def by_autograd(student, teacher, ids, spec):
    """The definition, differentiated by autograd; impossible categories are dropped token by token."""
    log_p, log_q = (torch.log_softmax(x / spec.temperature, -1) for x in (student, teacher))
    values = []
    for p, q, y in zip(log_p, log_q, ids, strict=True):
        if spec.mode == "token":
            values.append((p[y] - q[y]).detach() * p[y])
            continue
        if spec.mode == "topk":
            k = min(spec.topk, p.numel())
            own, other = p.topk(k).indices.tolist(), q.topk(k).indices.tolist()
            kept = {"student": own, "teacher": other, "union": sorted({*own, *other})}[spec.support]
            close = with_tail if spec.add_tail else support.renormalised
            p, q = close(p[kept]), close(q[kept])
        values.append(distribution_divergence(p, q, spec.alpha))
    return torch.stack(values)


def with_tail(log_probs):
    """The reference's formula."""
    inside = torch.logsumexp(log_probs, -1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], -1)


def random_pair(tokens=5, vocab=11, dtype=torch.float64, scale=3.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    student, teacher = (scale * torch.randn(tokens, vocab, generator=generator, dtype=torch.float64) for _ in "st")
    ids = torch.randint(0, vocab, (tokens,), generator=generator)
    return student.to(dtype).requires_grad_(), teacher.to(dtype), ids


def test_generalized_jsd_has_its_own_mixture_weights_and_end_points():
    student, teacher = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    expected = {0.0: 0.675806, 0.25: 0.116929, 0.5: 0.151358, 0.75: 0.114120, 1.0: 0.634897}
    for alpha, value in expected.items():
        assert distribution_divergence(student, teacher, alpha).item() == pytest.approx(value, abs=1e-5), alpha


def test_the_interior_goes_to_zero_at_both_ends_and_the_end_points_do_not():
    student, teacher = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    for near, at in ((0.01, 0.0), (0.99, 1.0)):
        inside, end = (distribution_divergence(student, teacher, alpha).item() for alpha in (near, at))
        assert 0.005 < inside < 0.007 and end > 0.6


@pytest.mark.parametrize(
    ("alpha", "tail", "expected"),
    [(0.0, True, 0.124011), (1.0, True, 0.116783), (0.0, False, 0.032269), (1.0, False, 0.031584)],
)
def test_top_k_accounts_for_the_missing_mass(scores_of, distill, alpha, tail, expected):
    student, teacher = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log(), torch.tensor([[0.3, 0.3, 0.10, 0.30]]).log()
    spec = Divergence("topk", alpha, topk=2, add_tail=tail)
    _, terms = distill(scores_of(student), scores_of(teacher), torch.tensor([0]), spec)
    assert terms.divergence.item() == pytest.approx(expected, abs=1e-5)
    assert terms.mass.item() == pytest.approx(0.8, abs=1e-6)
    assert terms.teacher_mass.item() == pytest.approx(0.6, abs=1e-6)


@pytest.mark.parametrize("spec", [s for s in GRID if s.mode != "token"], ids=str)
def test_no_distribution_divergence_is_ever_negative(scores_of, distill, spec):
    for scale in (0.01, 1.0, 30.0):
        student, teacher, ids = random_pair(tokens=50, scale=scale)
        assert distill(scores_of(student), scores_of(teacher), ids, spec)[1].divergence.min() >= -1e-12


@pytest.mark.parametrize("spec", GRID, ids=str)
def test_value_and_closed_form_gradient_equal_autograd(scores_of, distill, spec):
    student, teacher, ids = random_pair()
    weight = torch.linspace(-1, 2, 5, dtype=torch.float64)
    loss, terms = distill(scores_of(student), scores_of(teacher), ids, spec, weight)
    wanted = by_autograd(student, teacher, ids, spec)
    torch.testing.assert_close(terms.divergence, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(loss, (terms.divergence * weight).sum(), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss, student)
    (expected,) = torch.autograd.grad((wanted * weight).sum(), student)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("spec", [Divergence(), Divergence("topk", 0.5, 4), Divergence("full", 1.0)], ids=str)
def test_gradient_passes_a_finite_difference_check(scores_of, distill, spec):
    student, teacher, ids = random_pair(tokens=3, vocab=6, scale=1.0)
    (gradient,) = torch.autograd.grad(distill(scores_of(student), scores_of(teacher), ids, spec)[0], student)
    for entry in torch.eye(student.numel(), dtype=torch.float64).view(-1, *student.shape):
        step = 1e-6 * entry
        shifted = (scores_of(student.detach() + sign * step) for sign in (1, -1))
        above, below = (distill(scores, scores_of(teacher), ids, spec)[0] for scores in shifted)
        assert (above - below) / 2e-6 == pytest.approx((gradient * entry).sum().item(), abs=1e-8)


@pytest.mark.parametrize("spec", [Divergence("full", a) for a in (0.0, 0.5, 1.0)], ids=str)
def test_float32_gradient_keeps_its_digits_when_student_and_teacher_nearly_agree(scores_of, distill, spec):
    student, _, ids = random_pair(tokens=4, vocab=50)
    teacher = student.detach() + 1e-3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(1)).double()
    gradients = []
    for dtype in (torch.float64, torch.float32):
        leaf = student.detach().to(dtype).requires_grad_()
        distill(scores_of(leaf), scores_of(teacher.to(dtype)), ids, spec)[0].backward()
        gradients.append(leaf.grad.double())
    assert (gradients[0] - gradients[1]).norm() < 3e-3 * gradients[0].norm()


def test_only_the_loss_carries_a_gradient_and_the_teacher_gets_none(scores_of, distill):
    student, teacher, ids = random_pair()
    teacher.requires_grad_()
    loss, terms = distill(scores_of(student), scores_of(teacher), ids, Divergence("full", 0.5))
    assert not any(value.requires_grad for value in vars(terms).values())
    loss.backward()
    assert teacher.grad is None
    assert student.grad.abs().sum() > 0


def test_equal_contexts_give_no_loss_and_no_gradient(scores_of, distill):
    student, _, ids = random_pair(dtype=torch.float32)
    for spec in GRID:
        student.grad = None
        loss, terms = distill(scores_of(student), scores_of(student.detach().clone()), ids, spec)
        loss.backward()
        assert terms.divergence.abs().max() < 1e-6, spec
        assert student.grad.abs().max() < 1e-6, spec


def test_statistics_are_log_prob_and_entropies_at_the_temperature(scores_of, distill):
    student, teacher = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    _, terms = distill(scores_of(student), scores_of(teacher), torch.tensor([0]), Divergence(temperature=0.5))
    p = 1 / (1 + math.exp(-4))
    assert terms.log_prob.item() == pytest.approx(-0.018150, abs=1e-5)
    assert terms.entropy.item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-6)
    assert terms.teacher_entropy.item() == pytest.approx(math.log(2), abs=1e-6)
    assert terms.mass.item() == 1.0


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_token_impossible_on_both_sides_changes_nothing(scores_of, distill, alpha):
    student, teacher, ids = random_pair(vocab=4)
    blocked = torch.full((5, 1), -torch.inf, dtype=torch.float64)
    wide = torch.cat([student.detach(), blocked], -1).requires_grad_()
    spec = Divergence("full", alpha)
    loss, terms = distill(scores_of(wide), scores_of(torch.cat([teacher, blocked], -1)), ids, spec)
    narrow_loss, narrow = distill(scores_of(student), scores_of(teacher), ids, spec)
    torch.testing.assert_close(terms.divergence, narrow.divergence)
    loss.backward()
    narrow_loss.backward()
    torch.testing.assert_close(wide.grad[:, :-1], student.grad)
    assert (wide.grad[:, -1] == 0).all()


def test_union_support_sees_what_only_the_teacher_wants(scores_of, distill):
    student = torch.tensor([[0.5, 0.4, 0.05, 0.05]]).log()
    teacher = torch.tensor([[0.05, 0.05, 0.05, 0.85]]).log()
    gradient = {}
    for kind in ("student", "union"):
        leaf = student.clone().requires_grad_()
        spec = Divergence("topk", 0.0, 2, True, kind)
        distill(scores_of(leaf), scores_of(teacher), torch.tensor([0]), spec)[0].backward()
        gradient[kind] = leaf.grad[0]
    assert gradient["student"][2] == pytest.approx(gradient["student"][3])  # both only in the tail
    assert gradient["union"][3] < 0 < gradient["union"][2] + 1e-6  # forward KL: p - q
    assert gradient["union"][3].item() == pytest.approx(0.05 - 0.85, abs=1e-6)


def test_vocabularies_of_different_size_are_refused(scores_of, distill):
    with pytest.raises(ModelError, match="teacher vocabulary"):
        distill(scores_of(torch.zeros(1, 3)), scores_of(torch.zeros(1, 5)), torch.tensor([0]), Divergence())


def test_padded_vocabulary_rows_take_no_probability(distill):
    student, teacher = (ResponseScores(torch.zeros(2, width), None, None, 3) for width in (3, 5))
    _, terms = distill(student, teacher, torch.tensor([0, 1]), Divergence("full", 1.0))
    assert terms.divergence.tolist() == [0.0, 0.0]
    assert terms.teacher_entropy.tolist() == pytest.approx([math.log(3)] * 2)


def test_an_empty_batch_is_empty_and_has_a_graph(scores_of, distill):
    student = torch.zeros(0, 5, requires_grad=True)
    empty = torch.zeros(0, dtype=torch.int64)
    loss, _ = distill(scores_of(student), scores_of(torch.zeros(0, 5)), empty, Divergence())
    loss.backward()
    assert student.grad.shape == (0, 5)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": -0.1}, "alpha"),
        ({"mode": "token", "alpha": 0.5}, "alpha"),
        ({"mode": "topk", "topk": 0}, "topk"),
        ({"support": "both"}, "support"),
    ],
)
def test_impossible_settings_are_refused_by_name(fields, name):
    with pytest.raises(ConfigError, match=name):
        Divergence(**fields)


def test_description_says_which_side_of_the_cliff_is_running():
    assert Divergence(alpha=0.0).describe() == "forward KL, KL(teacher||student), whole vocabulary"
    assert "reverse KL" in Divergence(alpha=1.0).describe()
    assert Divergence("topk", 0.5, 100).describe() == "generalized Jensen-Shannon (alpha 0.5), student top-100 + tail"
