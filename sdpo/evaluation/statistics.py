"""Accuracies over problems with intervals, and models compared on the same problems.

The problems are the sample: answers to one are alike, so every interval resamples problems, never answers. Percentile
bootstrap (Efron 1979), 95 %, with a fixed seed. Where all problems agree a bootstrap has no width; the exact bound for
so many alike is given instead (Clopper and Pearson 1934): 0 right of 100 problems is "at most 0.036".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sdpo.training.metrics import pass_at_k

RESAMPLES = 10_000
LEVEL = 0.95
_AT_ONCE = 1 << 22  # numbers of resampled problems in memory


@dataclass(frozen=True)
class Problem:
    """The answers of one model to one problem. What could not be graded counts neither as right nor as wrong."""

    uid: str
    source: str
    graded: int
    correct: int
    reward: float  # sum over the graded answers
    answers: int
    truncated: int
    failed: int  # by the grader or the engine, not by the model
    tokens: int | None  # of all answers; None: the server did not say


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Difference:
    """Of the accuracy of one model to that of another, over the problems that both were graded on. `p`: how often
    signs that are drawn at random make as large a difference (two-sided, 10,000 draws)."""

    problems: int
    value: Estimate
    p: float
    better: int  # problems on which it is
    worse: int


def mean(values: Sequence[float], weights: Sequence[float], seed: int = 0) -> Estimate | None:
    """Sum of values / sum of weights, one of each per problem: a pooled accuracy. None without any weight."""
    tops, weight = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    if not weight.sum():
        return None
    value = float(tops.sum() / weight.sum())
    ratios = tops[weight > 0] / weight[weight > 0]
    if (ratios == ratios[0]).all():
        miss = 1 - ((1 - LEVEL) / 2) ** (1 / len(ratios))
        return Estimate(value, max(0.0, value - miss), min(1.0, value + miss)) if value in (0, 1) else _point(value)
    found = np.concatenate([tops[i].sum(1) / np.maximum(weight[i].sum(1), 1e-300) for i in _draws(len(tops), seed)])
    low, high = np.quantile(found, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))


def accuracy(problems: Sequence[Problem]) -> Estimate | None:
    """avg@n, pooled over all graded answers."""
    return mean([p.correct for p in problems], [p.graded for p in problems])


def reward(problems: Sequence[Problem]) -> Estimate | None:
    return mean([p.reward for p in problems], [p.graded for p in problems])


def solved_within(problems: Sequence[Problem], k: int) -> Estimate | None:
    """pass@k over the problems with at least k graded answers."""
    rates = [pass_at_k(p.graded, p.correct, k) for p in problems if p.graded >= k]
    return mean(rates, [1] * len(rates))


def difference(one: Sequence[Problem], other: Sequence[Problem], seed: int = 0) -> Difference | None:
    """`one` less `other`, paired by uid."""
    rates = {p.uid: p.correct / p.graded for p in other if p.graded}
    pairs = [p.correct / p.graded - rates[p.uid] for p in one if p.graded and p.uid in rates]
    value = mean(pairs, [1] * len(pairs), seed)
    if value is None:
        return None
    gaps = np.asarray(pairs)
    signs = np.random.default_rng(seed)
    size = max(1, _AT_ONCE // len(gaps))
    extreme = 0
    for start in range(0, RESAMPLES, size):
        flips = signs.integers(0, 2, (min(size, RESAMPLES - start), len(gaps))) * 2 - 1
        extreme += int((np.abs((flips * gaps).sum(1)) >= abs(gaps.sum()) - 1e-9).sum())
    p = (extreme + 1) / (RESAMPLES + 1)
    return Difference(len(pairs), value, p, int((gaps > 0).sum()), int((gaps < 0).sum()))


def _point(value: float) -> Estimate:
    return Estimate(value, value, value)


def _draws(problems: int, seed: int):
    """Index arrays [some, problems], RESAMPLES rows in all."""
    generator, size = np.random.default_rng(seed), max(1, _AT_ONCE // problems)
    for start in range(0, RESAMPLES, size):
        yield generator.integers(0, problems, (min(size, RESAMPLES - start), problems))
