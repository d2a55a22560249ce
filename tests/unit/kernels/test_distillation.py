"""From hidden states and heads, chunk by chunk, against logits of all tokens and autograd."""

from __future__ import annotations

import itertools

import pytest
import torch

from sdpo.kernels import head
from sdpo.kernels.distillation import Distillation, distillation_loss
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.lazy_logits import InterpolatedScores, ResponseScores
from sdpo.kernels.policy import policy_terms

TOKENS, HIDDEN, VOCAB, PADDED = 9, 5, 37, 40
SPECS = {
    "full": Divergence("full", 0.3, temperature=0.7),
    "top-k": Divergence("topk", 0.6, 4, True, "union", 1.3),
    "token": Divergence("token", 1.0),
}
HEADS = {
    "plain": {},
    "bias": {"bias": True},
    "scaled": {"scale": 0.25},
    "capped": {"scale": 1.5, "soft_cap": 3.0, "bias": True},
}


@pytest.fixture
def small_chunks(monkeypatch):
    """Three tokens a chunk, two a block, the widened head in pieces."""
    monkeypatch.setattr(head, "MIN_TOKENS", 3)
    monkeypatch.setattr(head, "CHUNK_BYTES", {"cpu": 0})
    monkeypatch.setattr(head, "BLOCK_ENTRIES", 2 * VOCAB)
    monkeypatch.setattr(head, "WIDENED_ROWS", 7)


def scores(seed, dtype=torch.float64, bias=False, **options):
    generator = torch.Generator().manual_seed(seed)
    shapes = (TOKENS, HIDDEN), (PADDED, HIDDEN), (PADDED,)
    hidden, weight, offset = (torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)
    leaves = [hidden.requires_grad_(), weight.requires_grad_(), offset.requires_grad_() if bias else None]
    return ResponseScores(*leaves, VOCAB, **options)


def leaves(student):
    return [t for t in (student.hidden, student.weight, student.bias) if t is not None]


def plain_logits(side):
    """By autograd, all tokens at once."""
    if isinstance(side, InterpolatedScores):
        return torch.lerp(plain_logits(side.reference), plain_logits(side.current), side.rate)
    logits = side.scale * torch.nn.functional.linear(side.hidden, side.weight, side.bias)[:, :VOCAB]
    return logits if side.soft_cap is None else side.soft_cap * torch.tanh(logits / side.soft_cap)


def plain_loss(student, teacher, ids, spec, weights, cap=None):
    log_p, log_q = (torch.log_softmax(plain_logits(side) / spec.temperature, -1) for side in (student, teacher))
    log_q, own = log_q.detach(), log_p.gather(-1, ids[:, None])[:, 0]
    if spec.mode == "token":
        values = (own - log_q.gather(-1, ids[:, None])[:, 0]).detach() * own
    else:
        if spec.mode == "topk":
            chosen = torch.zeros_like(log_p, dtype=torch.bool)
            for side in (log_p, log_q):
                chosen.scatter_(-1, side.topk(spec.topk).indices, True)
            log_p, log_q = (with_rest(side, chosen) for side in (log_p, log_q))
        log_m = ((1 - spec.alpha) * log_p.exp() + spec.alpha * log_q.exp()).clamp(min=1e-300).log()
        sides = (spec.alpha, log_q), (1 - spec.alpha, log_p)
        values = sum(share * (side.exp() * (side - log_m)).sum(-1) for share, side in sides)
    factor = weights * own.detach().exp()
    return (factor * (values if cap is None else values.clamp(max=cap))).sum()


def with_rest(log_probs, chosen):
    """Outside entries take a probability that changes nothing; one category more for all of them."""
    rest = log_probs.exp().masked_fill(chosen, 0.0).sum(-1, keepdim=True).log()
    return torch.cat([log_probs.masked_fill(~chosen, -700.0), rest], -1)


def fused(student, teacher, ids, spec, weights, cap=None, times_one=False):
    """Token weights that depend on the student's own log-prob, as importance weights do."""
    weigh = Distillation(spec, lambda part, log_prob: weights[part] * log_prob.exp(), cap, times_one)
    return distillation_loss(student, teacher, ids, weigh)


def case(**options):
    generator = torch.Generator().manual_seed(5)
    ids, weights = torch.randint(0, VOCAB, (TOKENS,), generator=generator), torch.linspace(-1, 2, TOKENS).double()
    return scores(1, **options), scores(2, **options), ids, weights


@pytest.mark.parametrize(("kind", "shape"), itertools.product(SPECS, HEADS))
def test_loss_and_all_gradients_equal_autograd_through_both_heads(small_chunks, kind, shape):
    student, teacher, ids, weights = case(**HEADS[shape])
    loss, _ = fused(student, teacher, ids, SPECS[kind], weights)
    expected = plain_loss(student, teacher, ids, SPECS[kind], weights)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=1e-12)
    found, wanted = (torch.autograd.grad(3.0 * value, leaves(student)) for value in (loss, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    assert (found[1][VOCAB:] == 0).all()
    assert all(tensor.grad is None for tensor in leaves(teacher))


@pytest.mark.parametrize("kind", SPECS)
def test_float32_is_within_1e_5_of_float64(small_chunks, kind):
    losses, gradients = [], []
    for dtype in (torch.float64, torch.float32):
        student, teacher, ids, weights = case(dtype=torch.float32)
        for side in (student, teacher):
            side.hidden, side.weight = (t.detach().to(dtype).requires_grad_() for t in (side.hidden, side.weight))
        loss, _ = fused(student, teacher, ids, SPECS[kind], weights.to(dtype))
        losses.append(loss.item())
        gradients.append([g.double() for g in torch.autograd.grad(loss, leaves(student))])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for wanted, found in zip(*gradients, strict=True):
        assert (wanted - found).norm() < 1e-5 * wanted.norm()


@pytest.mark.parametrize("kind", SPECS)
def test_bfloat16_hidden_states_and_heads_lose_nothing_but_the_rounding_of_the_gradient(small_chunks, kind):
    student, teacher, ids, weights = case(dtype=torch.bfloat16, bias=True)
    loss, _ = fused(student, teacher, ids, SPECS[kind], weights.float())
    exact = [
        ResponseScores(*(t.detach().double().requires_grad_() for t in leaves(s)), VOCAB) for s in (student, teacher)
    ]
    expected = plain_loss(*exact, ids, SPECS[kind], weights)
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), rel=1e-5)
    wanted = torch.autograd.grad(expected, leaves(exact[0]))
    for one, other in zip(torch.autograd.grad(loss, leaves(student)), wanted, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, rtol=2**-8, atol=1e-7)


@pytest.mark.parametrize("kind", SPECS)
def test_chunks_and_blocks_do_not_show(small_chunks, monkeypatch, kind):
    student, teacher, ids, weights = case()
    pieces, terms = fused(student, teacher, ids, SPECS[kind], weights)
    gradients = torch.autograd.grad(pieces, leaves(student))
    monkeypatch.undo()
    whole, whole_terms = fused(student, teacher, ids, SPECS[kind], weights)
    torch.testing.assert_close(pieces, whole, rtol=1e-13, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(whole, leaves(student)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)
    for name, value in vars(terms).items():
        torch.testing.assert_close(value, getattr(whole_terms, name), rtol=1e-12, atol=1e-14)


def test_a_capped_token_keeps_its_value_and_has_no_gradient(small_chunks):
    student, teacher, ids, weights = case()
    loss, terms = fused(student, teacher, ids, SPECS["full"], weights, cap=0.3)
    assert 0 < (terms.divergence > 0.3).sum() < TOKENS
    expected = plain_loss(student, teacher, ids, SPECS["full"], weights, cap=0.3)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=0)
    found, wanted = (torch.autograd.grad(value, leaves(student)) for value in (loss, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", HEADS)
def test_trust_region_teacher_mixes_logits_within_the_chunk(small_chunks, shape):
    student, teacher, ids, weights = case(**HEADS[shape])
    mixed = InterpolatedScores(teacher, scores(3, **HEADS[shape]), rate=0.25)
    loss, _ = fused(student, mixed, ids, SPECS["full"], weights)
    torch.testing.assert_close(loss, plain_loss(student, mixed, ids, SPECS["full"], weights), rtol=1e-11, atol=0)


def test_trust_region_teacher_makes_no_second_tensor_of_logits(monkeypatch):
    student, teacher, ids, weights = case()
    made = []
    monkeypatch.setattr(
        ResponseScores, "logits", lambda self, *a, plain=ResponseScores.logits: made.append(self) or plain(self, *a)
    )
    current = scores(3)
    fused(student, InterpolatedScores(teacher, current, rate=0.25), ids, SPECS["full"], weights)
    assert made == [student, teacher]


@pytest.mark.parametrize("of", ["distillation", "policy"])
def test_no_tokens_leave_zero_gradients_of_every_shape(of):
    student = scores(1, bias=True)
    none = ResponseScores(student.hidden[:0], student.weight, student.bias, VOCAB)
    ids = torch.zeros(0, dtype=torch.int64)
    if of == "policy":
        loss = policy_terms(none, ids, 1.0)[0].sum()
    else:
        loss, _ = fused(none, none, ids, SPECS["full"], torch.zeros(0))
    loss.backward()
    assert all((tensor.grad == 0).all() and tensor.grad.shape == tensor.shape for tensor in leaves(student))


def test_a_tied_head_adds_its_two_gradients(small_chunks):
    _, teacher, ids, weights = case()
    weight = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for of in (lambda *a: fused(*a)[0], plain_loss):
        tied = weight.clone().requires_grad_()
        student = ResponseScores(torch.tanh(tied[:TOKENS]), tied, None, VOCAB)
        found.append(torch.autograd.grad(of(student, teacher, ids, SPECS["full"], weights), tied)[0])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_a_head_of_low_rank_updates_passes_its_gradient_on(small_chunks):
    student, teacher, ids, weights = case()
    low, high = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((2, HIDDEN), (PADDED, 2)))
    adapted = ResponseScores(student.hidden.detach(), student.weight.detach() + 0.5 * high @ low, None, VOCAB)
    values = (
        fused(adapted, teacher, ids, SPECS["full"], weights)[0],
        plain_loss(adapted, teacher, ids, SPECS["full"], weights),
    )
    found, wanted = (torch.autograd.grad(value, (low, high), retain_graph=True) for value in values)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_frozen_head_and_no_grad_mode_cost_no_gradient_memory(small_chunks):
    student, teacher, ids, weights = case()
    frozen = ResponseScores(student.hidden, student.weight.detach(), None, VOCAB)
    fused(frozen, teacher, ids, SPECS["full"], weights)[0].backward()
    assert student.hidden.grad is not None and student.weight.grad is None
    with torch.no_grad():
        assert not fused(student, teacher, ids, SPECS["full"], weights)[0].requires_grad


@pytest.mark.parametrize(("of", "shape"), itertools.product(["distillation", "policy"], HEADS))
def test_a_given_gradient_of_the_head_is_added_to_in_place(small_chunks, of, shape):
    found = []
    for given in (False, True):
        student, teacher, ids, weights = case(**HEADS[shape])
        student.weight.grad = held = torch.arange(PADDED * HIDDEN, dtype=torch.float64).view(PADDED, HIDDEN)
        student.weight_gradient = held if given else None
        if of == "policy":
            loss = policy_terms(student, ids, 0.7)[0].mul(weights).sum()
        else:
            loss, _ = fused(student, teacher, ids, SPECS["full"], weights, times_one=True)
            moved = not torch.equal(held.flatten(), torch.arange(held.numel()).double())
            assert moved == given  # in the forward pass already
        loss.backward()
        assert student.weight.grad is held
        found.append([tensor.grad for tensor in leaves(student)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_gradient_added_in_place_cannot_be_scaled_any_more(small_chunks):
    student, teacher, ids, weights = case()
    student.weight_gradient = torch.zeros_like(student.weight)
    loss, _ = fused(student, teacher, ids, SPECS["full"], weights, times_one=True)
    with pytest.raises(RuntimeError, match="added times 1, not times 0.5"):
        (0.5 * loss).backward()
    loss, _ = fused(student, teacher, ids, SPECS["full"], weights)  # nobody promised
    (0.5 * loss).backward()
    assert student.weight.grad.abs().max() > 0


def test_nothing_is_added_in_place_without_a_gradient(small_chunks):
    student, teacher, ids, weights = case()
    student.weight_gradient = torch.zeros_like(student.weight)
    with torch.no_grad():
        fused(student, teacher, ids, SPECS["full"], weights, times_one=True)
        policy_terms(student, ids, 1.0)
    student.weight.requires_grad_(False)
    fused(student, teacher, ids, SPECS["full"], weights, times_one=True)[0].backward()
    assert not student.weight_gradient.any()


def test_a_second_backward_pass_is_an_error_not_a_wrong_gradient(small_chunks):
    student, teacher, ids, weights = case()
    loss, _ = fused(student, teacher, ids, SPECS["full"], weights)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="differentiated before"):
        loss.backward()


@pytest.mark.parametrize(("shape", "with_entropy"), itertools.product(HEADS, (False, True)))
def test_log_probs_and_entropy_have_the_gradients_of_autograd(small_chunks, shape, with_entropy):
    student, _, ids, weights = case(**HEADS[shape])
    log_prob, entropy = policy_terms(student, ids, 0.7, entropy_gradient=with_entropy)
    log_p = torch.log_softmax(plain_logits(student) / 0.7, -1)
    own, plain_entropy = log_p.gather(-1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    torch.testing.assert_close(log_prob, own, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(entropy, plain_entropy, rtol=1e-12, atol=1e-12)
    assert entropy.requires_grad == with_entropy
    pairs = (log_prob, entropy), (own, plain_entropy if with_entropy else plain_entropy.detach())
    found, wanted = (
        torch.autograd.grad((weights * own.exp() + weights.flip(0) * bonus).sum(), leaves(student))
        for own, bonus in pairs
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("total", "largest"), [(1, 64), (64, 64), (65, 64), (1000, 128), (7, 1)])
def test_parts_cover_everything_once_in_nearly_equal_sizes(total, largest):
    pieces = head.parts(total, largest)
    assert [i for piece in pieces for i in range(total)[piece]] == list(range(total))
    sizes = [piece.stop - piece.start for piece in pieces]
    assert max(sizes) <= largest and len(pieces) == -(-total // largest)
    assert head.parts(0, 5) == []


def test_chunks_follow_the_memory_budget_down_to_a_floor():
    like = torch.zeros(0)
    assert head.token_chunks(10_000, 100, like) == [slice(0, 10_000)]
    longest = head.token_chunks(10_000, 30_000, like)[0].stop
    assert longest > head.MIN_TOKENS and longest * 30_000 * 4 * 2 <= head.CHUNK_BYTES["cpu"]
    assert head.token_chunks(10_000, 30_000, like, sides=1)[0].stop > longest
    assert head.token_chunks(10_000, 500_000, like)[0].stop <= head.MIN_TOKENS


def test_chunks_avoid_the_row_numbers_that_cost_a_copy():
    like = torch.zeros(0)
    for tokens in range(129, 3000, 7):
        sizes = [chunk.stop - chunk.start for chunk in head.token_chunks(tokens, 80_000, like)]
        assert sum(sizes) == tokens and sizes[0] == max(sizes) <= head.MIN_TOKENS
        assert not any(size in head.COPIED_ROWS for size in sizes[:-1]), tokens
