"""The distillation loss on an NVIDIA GPU: Triton kernels and half-precision products, against float64 by torch."""

from __future__ import annotations

import pytest
import torch

from sdpo.kernels import choice, chunk_terms, head
from sdpo.kernels.distillation import Distillation, distillation_loss
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.lazy_logits import ResponseScores

TOKENS, HIDDEN, VOCAB = 96, 128, 20_011
SPECS = [
    *(Divergence("full", alpha, temperature=0.7) for alpha in (0.0, 0.5, 1.0)),
    *(Divergence("topk", alpha, 100, True, chosen) for alpha in (0.0, 0.5, 1.0) for chosen in ("student", "union")),
    Divergence("topk", 0.5, 100, False),
    Divergence("token", 1.0),
]


def sides(dtype, device="cuda"):
    generator = torch.Generator().manual_seed(0)
    hidden, noise = (torch.randn(TOKENS, HIDDEN, generator=generator) for _ in "hn")
    weight = torch.randn(VOCAB, HIDDEN, generator=generator) * 3.0 / HIDDEN**0.5
    student = [t.to(device, dtype).requires_grad_() for t in (hidden, weight)]
    teacher = [t.to(device, dtype) for t in (hidden + 0.5 * noise, weight)]
    return student, teacher, torch.randint(0, VOCAB, (TOKENS,), generator=generator).to(device)


def loss_and_gradients(student, teacher, ids, spec, soft_cap):
    own, other = (ResponseScores(*side, None, VOCAB, soft_cap=soft_cap) for side in (student, teacher))
    weigh = Distillation(spec, lambda part, log_prob: log_prob.new_full(log_prob.shape, 1.0 / TOKENS))
    loss, terms = distillation_loss(own, other, ids, weigh)
    return loss.item(), torch.autograd.grad(loss, student), terms


@pytest.mark.parametrize("soft_cap", [None, 10.0])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_kernels_agree_with_float64(spec, soft_cap, monkeypatch):
    monkeypatch.setattr(head, "CHUNK_BYTES", {"cuda": 2**23})  # several chunks
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    student, teacher, ids = sides(torch.float32)
    loss, gradients, terms = loss_and_gradients(student, teacher, ids, spec, soft_cap)
    wide = ([t.detach().double().requires_grad_() for t in student], [t.double() for t in teacher])
    wanted, exact, exact_terms = loss_and_gradients(*wide, ids, spec, soft_cap)
    assert loss == pytest.approx(wanted, rel=1e-4)
    for one, other in zip(gradients, exact, strict=True):
        assert (one.double() - other).norm() < 1e-4 * other.norm()
    for name, value in vars(terms).items():
        torch.testing.assert_close(value.double(), getattr(exact_terms, name), rtol=1e-4, atol=1e-5)


def test_triton_and_torch_give_the_same_numbers_from_the_same_logits():
    generator = torch.Generator("cuda").manual_seed(0)
    student = 3.0 * torch.randn(TOKENS, VOCAB, device="cuda", generator=generator)
    teacher = student + torch.randn(TOKENS, VOCAB, device="cuda", generator=generator)
    ids = torch.randint(0, VOCAB, (TOKENS,), device="cuda", generator=generator)
    path = choice.distillation_terms(student)
    assert path is not chunk_terms.chunk_terms_
    for spec in SPECS:
        found = []
        for terms_ in (path, chunk_terms.chunk_terms_):
            gradient = student.clone()
            values = terms_(gradient, teacher.clone(), ids, spec)
            found.append((values[:-1], gradient * values[-1][:, None]))
        (values, gradient), (wanted, other) = found
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)
        assert (gradient - other).norm() < 1e-5 * other.norm(), spec


def test_bfloat16_heads_are_within_bfloat16_rounding_of_float64():
    student, teacher, ids = sides(torch.bfloat16)
    loss, gradients, _ = loss_and_gradients(student, teacher, ids, Divergence(), None)
    wide = ([t.detach().double().requires_grad_() for t in student], [t.double() for t in teacher])
    wanted, exact, _ = loss_and_gradients(*wide, ids, Divergence(), None)
    assert loss == pytest.approx(wanted, rel=1e-4)
    for one, other in zip(gradients, exact, strict=True):
        assert (one.double() - other).norm() < 2**-7 * other.norm()
