"""Which vocabulary entries a top-k divergence compares, and the distribution over them.

The k most likely tokens of the student (the reference), of the teacher, or both. What lies outside is one more
category, the tail, or is left out and the rest renormalised. Either way the result is a distribution on both sides, so
the divergence is never negative.
"""

from __future__ import annotations

import math

import torch

MIN_GROUP = 4  # entries; below, two selections cost more than one
MIN_TAIL = math.log(-math.expm1(-1e-7))  # log-mass; keeps the tail's logarithm finite


def top_ids(values: torch.Tensor, k: int) -> torch.Tensor:
    """Ids [N, k] of the k largest of each row [N, V], in no order.

    The largest k are all in the k strided groups with the largest maxima, so only those are searched: with groups of
    sqrt(V / k) entries that is a tenth of the work of a selection over the vocabulary.
    """
    tokens, width = values.shape
    size = math.isqrt(width // k)
    if size < MIN_GROUP:
        return values.topk(k, dim=-1, sorted=False).indices
    groups = width // size
    grouped = values[:, : groups * size].unflatten(-1, (size, groups))  # group g: entries g, g + groups, ...
    chosen = grouped.amax(1).topk(k, dim=-1, sorted=False).indices
    offsets = groups * torch.arange(size, device=values.device)
    rest = torch.arange(groups * size, width, device=values.device).expand(tokens, -1)
    candidates = torch.cat([(chosen[:, :, None] + offsets).flatten(1), rest], -1)
    return candidates.gather(-1, values.gather(-1, candidates).topk(k, dim=-1, sorted=False).indices)


def choose_support(
    student: torch.Tensor, teacher: torch.Tensor, k: int, kind: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [N, K] and which of them count [N, K] (bool).

    student, teacher: logits or log-probs [N, V]. kind: student | teacher | union. K is k, or 2k for the union. A k
    above V means V.
    """
    k = min(k, student.shape[-1])
    sides = {"student": [student], "teacher": [teacher], "union": [student, teacher]}[kind]
    ids = torch.cat([top_ids(side, k) for side in sides], -1)
    return ids, counted(ids, k)


def counted(ids: torch.Tensor, k: int) -> torch.Tensor:
    """Which of the ids [N, K] of a support count: all but those behind the first k that are among them too."""
    own, other = ids[:, :k], ids[:, k:].contiguous()
    every = torch.ones_like(ids, dtype=torch.bool)
    if other.shape[-1]:
        own = own.sort(-1).values
        every[:, k:] = own.gather(-1, torch.searchsorted(own, other).clamp(max=k - 1)) != other
    return every


def with_tail(log_probs: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [N, K + 1]: appends the log of the mass `outside` [N, 1], added up there: as what the mass inside
    leaves of 1 a small tail would have no digits in float32."""
    return torch.cat([log_probs, outside.clamp(min=MIN_TAIL)], -1)


def renormalised(log_probs: torch.Tensor) -> torch.Tensor:
    """[N, K] -> [N, K]: the distribution given that the token is in the support."""
    return log_probs - torch.logsumexp(log_probs, -1, keepdim=True)
