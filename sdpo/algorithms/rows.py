"""From graded groups to mini-batches: which samples may be trained on, and which rows share an optimizer step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sdpo.algorithms.micro_batch_shares import set_shares
from sdpo.config.schema import ActorConfig
from sdpo.records import Distillation, Group, MiniBatch, Reprompt, RoutedRows, Sample, TrainBatch, TrainRow

REWARD_TOLERANCE = 1e-9  # rewards closer than this are equal: ten tests of weight 0.1 sum to 0.9999999999999999


def usable(sample: Sample) -> bool:
    """Graded, finished and not empty. A failure of the grader or the engine says nothing about the answer."""
    return sample.reward is not None and sample.finish_reason != "abort" and bool(sample.response_ids)


def is_success(sample: Sample, threshold: float) -> bool:
    """Graded, and its reward reaches the threshold."""
    return sample.reward is not None and sample.reward >= threshold - REWARD_TOLERANCE


def rows_of(sample: Sample, reprompt: Reprompt | None = None, **components: Any) -> list[TrainRow]:
    """One row of an answer to a prompt, one of each token sequence of an episode; `components` as in `TrainRow`.

    With a reprompt the response is distilled: turns behind it in the place of the prompt, those with a hint of their
    own behind that.
    """
    name, logprobs = (sample.prompt_uid, sample.index), sample.sampler_logprobs
    if not sample.turns:
        ids = sample.prompt_ids, sample.response_ids
        teacher = None if reprompt is None else reprompt.prompt_ids
        return [TrainRow.single_turn(*name, *ids, teacher, sampler_logprobs=logprobs, **components)]
    starts = [0, *itertools.accumulate(stop - start for start, stop in (turn.span for turn in sample.turns))]
    rows = []
    for number, sequence in enumerate(sample.sequences):
        own = [place for place, turn in enumerate(sample.turns) if turn.sequence == number]
        spans = tuple(sample.turns[place].span for place in own)
        drawn = logprobs and [p for place in own for p in logprobs[starts[place] : starts[place + 1]]]
        if reprompt is not None:
            contexts = [_teacher_context(sample, reprompt, place) for place in own]
            told = zip(spans, contexts, strict=True)
            components["distillation"] = tuple(Distillation(span, c) for span, c in told if c is not None)
        rows.append(TrainRow(*name, sequence, spans, drawn, **components))
    return rows if reprompt is None else [row for row in rows if row.distillation]


def _teacher_context(sample: Sample, reprompt: Reprompt, place: int) -> Sequence[int] | None:
    """All that the teacher reads before a turn; None: it is told nothing about it."""
    if place in reprompt.turns:
        return reprompt.turns[place]
    turn, asked = sample.turns[place], sample.prompt_ids
    ids = sample.sequences[turn.sequence]
    if not reprompt.prompt_ids or ids[: len(asked)] != asked:
        return None
    return [*reprompt.prompt_ids, *ids[len(asked) : turn.span[0]]]


def train_batch(groups: list[Group], routed: RoutedRows, actor: ActorConfig) -> TrainBatch:
    """Mini-batches of `ppo_mini_batch_size` groups. One in which no row has any weight is left out and counted.

    Groups without rows keep their place, so that a prompt's mini-batch does not depend on its neighbours' rewards.
    """
    prompts_per_step = actor.ppo_mini_batch_size
    _number_split_samples(routed.rows)
    if actor.self_distillation.loss_normalization == "micro_batch":
        set_shares(groups, routed.rows, actor)
    starts = range(0, len(routed.rows), prompts_per_step)
    batches = [MiniBatch([row for rows in routed.rows[at : at + prompts_per_step] for row in rows]) for at in starts]
    filled = [batch for batch in batches if any(map(weighted, batch.rows))]
    metrics = routed.metrics | {"actor/empty_mini_batches": float(len(batches) - len(filled))}
    return TrainBatch(filled, metrics, routed.reprompts)


def _number_split_samples(groups: list[list[TrainRow]]) -> None:
    """Rows of one sample are one sequence. The same prompt may be there twice: a number, not its name, tells."""
    numbers = itertools.count()
    for rows in groups:
        several = {key: next(numbers) for key, count in Counter(row.key for row in rows).items() if count > 1}
        for row in rows:
            row.sequence = several.get(row.key)


def weighted(row: TrainRow) -> TrainRow | None:
    """The row without components whose weights are all zero; None when no other is left: no forward pass is spent on
    it. It stays in the denominators of its mini-batch."""
    gradient, entropy = row.policy_gradient, row.cross_entropy
    left = replace(
        row,
        policy_gradient=gradient if gradient and _counts(gradient.weight) else None,
        distillation=tuple(part for part in row.distillation if _counts(part.weight)),
        cross_entropy=entropy if entropy and _counts(entropy.weight) else None,
    )
    return left if left.policy_gradient or left.distillation or left.cross_entropy else None


def _counts(weight: float | Sequence[float]) -> bool:
    return bool(weight) if isinstance(weight, (int, float)) else any(weight)


def usable_samples(groups: list[Group]) -> int:
    return sum(usable(sample) for group in groups for sample in group.samples)


def fraction(part: float, whole: float) -> float:
    """part / whole, 0 for nothing at all."""
    return part / whole if whole else 0.0
