"""What groups of graded samples say in numbers. Averages are pooled over samples (or groups), never means of means.

Samples that could not be graded (status in `UNGRADED`, or no grade) are out of rewards and accuracies, counted apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from sdpo.algorithms.rows import is_success
from sdpo.records import Grade, GradeStatus, Group, Sample
from sdpo.tracking.pooling import merge, pool

__all__ = ["is_success", "merge", "pass_at_k", "pool", "success_counts", "train_metrics", "validation_metrics"]


def success_counts(group: Group, threshold: float = 1.0) -> tuple[int, int]:
    """(graded samples, successes) of a group."""
    return len(_grades(group.samples)), sum(is_success(sample, threshold) for sample in group.samples)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, hold at least one of the `correct` ones: the unbiased
    estimator of Chen et al. 2021 (arXiv 2107.03374), in exact integers.

    >>> pass_at_k(4, 1, 2), pass_at_k(4, 1, 4)
    (0.5, 1.0)
    """
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"pass@{k} of {n} samples with {correct} correct: needs 0 <= correct <= n and 1 <= k <= n")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def train_metrics(groups: list[Group], threshold: float, samples_before: float = 0.0) -> dict[str, float]:
    """The `train/*` and `grade/*` metrics of one rollout batch. `samples_before`: `train/samples` of the step before.

    A metric with nothing to average (say, no graded sample) is left out.
    """
    samples = _samples(groups)
    tokens = [len(sample.response_ids) for sample in samples]
    counts = [success_counts(group, threshold) for group in groups]
    mixed = [0 < correct < graded for graded, correct in counts if graded]
    metrics = {
        "train/samples": samples_before + len(samples),
        "train/step_samples": len(samples),
        "train/step_groups": len(groups),
        "train/step_tokens": sum(tokens),
        **_outcomes("train", samples, threshold),
        **_mean("train/mixed_group_frac", mixed),
        **_mean("train/solved_group_frac", [correct > 0 for graded, correct in counts if graded]),
        **_mean("train/prompt_length", [len(sample.prompt_ids) for sample in samples]),
        **_lost("train", samples),
        **_mean("rollout/failed_frac", [sample.finish_reason == "abort" for sample in samples]),
        **_mean("rollout/staleness", [sample.staleness for sample in samples]),
        **_episodes(samples),
    }
    if tokens:
        metrics["train/response_length_max"] = max(tokens)
    statuses = Counter(status for sample in samples if (status := _status(sample)) is not None)
    metrics |= {f"grade/{status}_frac": statuses[status] / len(samples) for status in GradeStatus if samples}
    return metrics


def validation_metrics(groups: list[Group], n: int, threshold: float) -> dict[str, float]:
    """The `val/*` metrics of n responses to each held-out prompt: avg@n (pooled over all graded responses), pass@k for
    k = 2, 4, 8, ... and n, reward, lengths, what was lost; with several data sources also `val/<source>/...` for
    avg@n, pass@k and reward.

    pass@k is the mean over prompts with at least k graded responses. `val/graded_samples` is what avg@n divides by.
    """
    samples = _samples(groups)
    metrics = {
        "val/samples": float(len(samples)),
        "val/graded_samples": float(len(_grades(samples))),
        **_outcomes("val", samples, threshold),
        **_lost("val", samples),
    }
    metrics.pop("val/accuracy", None)  # it is avg@n
    metrics |= _accuracy("val", groups, n, threshold)
    sources = sorted({group.prompt.data_source for group in groups})
    if len(sources) > 1:
        for source in sources:
            own = [group for group in groups if group.prompt.data_source == source]
            metrics |= _accuracy(f"val/{source}", own, n, threshold)
            metrics |= _mean(f"val/{source}/reward", _rewards(_samples(own)))
    return metrics


def _accuracy(prefix: str, groups: list[Group], n: int, threshold: float) -> dict[str, float]:
    counts = [success_counts(group, threshold) for group in groups]
    graded = sum(count for count, _ in counts)
    metrics = {f"{prefix}/avg@{n}": sum(correct for _, correct in counts) / graded} if graded else {}
    for k in _pass_ks(n):
        metrics |= _mean(
            f"{prefix}/pass@{k}", [pass_at_k(count, correct, k) for count, correct in counts if count >= k]
        )
    return metrics


def _pass_ks(n: int) -> list[int]:
    return sorted({2**power for power in range(1, n.bit_length()) if 2**power <= n} | ({n} if n > 1 else set()))


def _outcomes(prefix: str, samples: list[Sample], threshold: float) -> dict[str, float]:
    return {
        **_mean(f"{prefix}/reward", _rewards(samples)),
        **_mean(f"{prefix}/accuracy", [is_success(s, threshold) for s in samples if s.reward is not None]),
        **_mean(f"{prefix}/passed_fraction", [grade.passed_fraction for grade in _grades(samples)]),
        **_mean(f"{prefix}/response_length", [len(sample.response_ids) for sample in samples]),
        **_mean(f"{prefix}/truncated_frac", [sample.truncated for sample in samples]),
        **_extra(prefix, _grades(samples)),
    }


def _extra(prefix: str, grades: list[Grade]) -> dict[str, float]:
    """Further numbers of a custom grader, each over the samples that have it."""
    values: dict[str, list[float]] = {}
    for grade in grades:
        for name, value in grade.extra.items():
            if isinstance(value, int | float):  # what is no number is in samples.jsonl
                values.setdefault(name, []).append(value)
    return {f"{prefix}/extra/{name}": sum(found) / len(found) for name, found in sorted(values.items())}


def _episodes(samples: list[Sample]) -> dict[str, float]:
    """Of a batch with an episode of several turns. A sample is one, however many rows it becomes."""
    if not any(sample.turns for sample in samples):
        return {}
    return {
        **_mean("rollout/turns", [max(1, len(sample.turns)) for sample in samples]),
        **_mean("rollout/forks", [max(0, len(sample.sequences) - 1) for sample in samples]),
    }


def _lost(prefix: str, samples: list[Sample]) -> dict[str, float]:
    """Shares of what no average holds: the grader failed, or the row cannot be graded."""
    return {
        **_mean(f"{prefix}/infra_error_frac", [_status(sample) is GradeStatus.INFRA_ERROR for sample in samples]),
        **_mean(f"{prefix}/ungraded_frac", [sample.reward is None for sample in samples]),
    }


def _samples(groups: Iterable[Group]) -> list[Sample]:
    return [sample for group in groups for sample in group.samples]


def _grades(samples: Iterable[Sample]) -> list[Grade]:
    return [sample.grade for sample in samples if sample.grade is not None and sample.grade.graded]


def _rewards(samples: Iterable[Sample]) -> list[float]:
    return [sample.reward for sample in samples if sample.reward is not None]


def _status(sample: Sample) -> GradeStatus | None:
    return None if sample.grade is None else sample.grade.status


def _mean(name: str, values: list[float] | list[bool] | list[int]) -> dict[str, float]:
    return {name: sum(values) / len(values)} if values else {}
