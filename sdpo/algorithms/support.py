"""Which vocabulary entries a top-k divergence compares, and the distribution over them.

The k most likely tokens of the student (the reference), of the teacher, or both. What lies outside is one more
category, the tail, or is left out and the rest renormalised. Either way the result is a distribution on both sides, so
the divergence is never negative.
"""

from __future__ import annotations

import torch

TAIL_LIMIT = -1e-7  # largest log-mass of the chosen entries that the tail formula sees: keeps log(1 - mass) finite


def choose_support(
    student: torch.Tensor, teacher: torch.Tensor, k: int, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [N, K] and which of them count [N, K] (bool).

    student, teacher: logits or log-probs [N, V]. kind: student | teacher | union. K is k, or 2k for the union, where
    the teacher's ids that the student chose too are switched off. A k above V means V.
    """
    k = min(k, student.shape[-1])
    if kind == "union":
        own, other = student.topk(k, dim=-1).indices, teacher.topk(k, dim=-1).indices
        chosen = torch.zeros_like(student, dtype=torch.bool).scatter_(-1, own, True)
        counted = torch.cat([torch.ones_like(own, dtype=torch.bool), ~chosen.gather(-1, other)], -1)
        return torch.cat([own, other], -1), counted
    ids = (student if kind == "student" else teacher).topk(k, dim=-1).indices
    return ids, torch.ones_like(ids, dtype=torch.bool)


def gather_log_probs(log_probs: torch.Tensor, ids: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Log-probs [N, K] at the support, relative to the full softmax; -inf where an id does not count."""
    return log_probs.gather(-1, ids).masked_fill(~counted, -torch.inf)


def with_tail(log_probs: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [N, K + 1]: appends the log of the mass outside."""
    inside = torch.logsumexp(log_probs, -1, keepdim=True).clamp(max=TAIL_LIMIT)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], -1)


def renormalised(log_probs: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [N, K]: the distribution given that the token is in the support."""
    return log_probs - torch.logsumexp(log_probs, -1, keepdim=True)
