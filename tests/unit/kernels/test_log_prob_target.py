"""A teacher that says log-probs at a few ids: loss, statistics and gradient of the one that hands out its logits."""

from __future__ import annotations

import itertools

import pytest
import torch

from sdpo.kernels import head
from sdpo.kernels.chunk_terms import LogProbs, log_probs_
from sdpo.kernels.distillation import Distillation, distillation_loss
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.kernels.support import top_ids

TOKENS, HIDDEN = 11, 6
TOPK = itertools.product(("student", "teacher", "union"), (True, False), (0.0, 0.4, 1.0))
SPECS = [Divergence("topk", alpha, 5, tail, support, 1.3) for support, tail, alpha in TOPK]
SPECS.append(Divergence("token", 1.0, temperature=0.7))


class Answering:
    """As a teacher elsewhere: its logits stay with it."""

    def __init__(self, scores: ResponseScores, spec: Divergence) -> None:
        self.scores, self.spec, self.vocab_size = scores, spec, scores.vocab_size
        self.sampled = torch.empty(TOKENS, dtype=torch.float64)

    def at(self, part: slice, ids: torch.Tensor, student_logits: torch.Tensor) -> LogProbs:
        asks = self.spec.mode == "topk" and self.spec.support != "teacher"
        student_ids = top_ids(student_logits, min(self.spec.topk, self.vocab_size)) if asks else None
        said = log_probs_(self.scores.logits(part), ids, self.spec, student_ids)
        self.sampled[part] = said.sampled[:, 0].double()
        return said


def _scores(seed: int, vocab: int, dtype: torch.dtype, soft_cap: float | None) -> ResponseScores:
    generator = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(n, HIDDEN, generator=generator).to(dtype) for n in (TOKENS, vocab))
    return ResponseScores(hidden.requires_grad_(), weight.requires_grad_(), None, vocab, soft_cap=soft_cap)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.mode}-{spec.support}-{spec.add_tail}-{spec.alpha}")
@pytest.mark.parametrize(
    ("vocab", "dtype", "soft_cap"),
    [(3, torch.float64, None), (29, torch.float64, 2.0), (29, torch.float32, None), (4100, torch.float32, None)],
)
def test_log_probs_at_the_support_give_the_loss_of_the_logits(monkeypatch, spec, vocab, dtype, soft_cap):
    monkeypatch.setattr(head, "MIN_TOKENS", 3)  # several chunks, and several blocks in each
    monkeypatch.setattr(head, "CHUNK_BYTES", {"cpu": 0})
    monkeypatch.setattr(head, "BLOCK_ENTRIES", 2 * vocab)
    ids = torch.randint(vocab, (TOKENS,), generator=torch.Generator().manual_seed(1))
    teacher = _scores(2, vocab, dtype, soft_cap)
    answering = Answering(teacher, spec)
    distillation = Distillation(spec, lambda part, log_prob: torch.linspace(0.5, 2, TOKENS, dtype=dtype)[part], cap=3.0)
    found = []
    for source in (teacher, answering):
        student = _scores(3, vocab, dtype, soft_cap)
        loss, terms = distillation_loss(student, source, ids, distillation)
        loss.backward()
        found.append([loss.detach(), *vars(terms).values(), student.hidden.grad, student.weight.grad])
    close = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    for wanted, got in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, **close)
    own = (teacher.logits() / spec.temperature).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    torch.testing.assert_close(answering.sampled, own.double(), rtol=1e-5, atol=1e-5)
