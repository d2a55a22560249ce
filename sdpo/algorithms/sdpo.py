"""SDPO: pull the student toward what it would have said, knowing what went wrong.

Each sample with a signal is scored twice, by the student as it was sampled and by the teacher that has seen the
reprompt; the loss is the divergence between the two at every token of the response.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from sdpo.algorithms.rows import fraction, rows_of, usable, usable_samples
from sdpo.config.schema import Config
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.policy import loss_temperature
from sdpo.records import Group, Reprompt, Reprompts, RoutedRows, RowKey, TrainRow

BUILDER_COUNTS = ("both", "trimmed", "masked_overlong")  # demonstration and feedback; cut to fit; nothing fitted


class RepromptSource(Protocol):
    """What the controller's reprompt builder looks like from here. It makes what the rollout has not made already."""

    def build(self, group: Group, step: int) -> Reprompts: ...


class Reprompted:
    """The samples of a rollout batch that there is something to tell the teacher about."""

    def __init__(self, source: RepromptSource, groups: list[Group], step: int) -> None:
        self._counts: Counter[str] = Counter()
        self._samples = usable_samples(groups)
        self.by_group: list[dict[int, Reprompt]] = []  # by index in the group
        for group in groups:
            built, counts = group.reprompts or source.build(group, step)
            self._counts.update(counts)
            pairs = zip(group.samples, built, strict=True)
            self.by_group.append({s.index: reprompt for s, reprompt in pairs if reprompt is not None and usable(s)})

    def named(self, groups: list[Group]) -> dict[RowKey, Reprompt]:
        return {
            (group.prompt.uid, index): reprompt
            for group, reprompts in zip(groups, self.by_group, strict=True)
            for index, reprompt in reprompts.items()
        }

    def metrics(self) -> dict[str, float]:
        """Fractions of the usable samples; with the builder's counts of what was cut or did not fit."""
        built = [reprompt for reprompts in self.by_group for reprompt in reprompts.values()]
        demonstrations = sum(reprompt.demonstrates for reprompt in built)
        return {
            **{f"sdpo/{name}_frac": fraction(self._counts[name], self._samples) for name in BUILDER_COUNTS},
            "sdpo/signal_frac": fraction(len(built), self._samples),
            "sdpo/demonstration_frac": fraction(demonstrations, self._samples),
            "sdpo/feedback_frac": fraction(sum(reprompt.used_feedback for reprompt in built), self._samples),
        }


class Sdpo:
    """Every sample with a reprompt is distilled; the others cost no forward pass and are in no denominator."""

    def __init__(self, config: Config, reprompts: RepromptSource) -> None:
        self.config, self.reprompts = config, reprompts

    def describe(self) -> str:
        actor = self.config.actor_rollout_ref.actor
        temperature = loss_temperature(self.config.actor_rollout_ref.rollout.temperature)
        divergence = Divergence.from_config(actor.self_distillation, temperature).describe()
        teacher = actor.self_distillation.teacher_regularization
        return f"SDPO, {divergence}, {actor.loss_agg_mode}, teacher {teacher}"

    def route(self, groups: list[Group], step: int) -> RoutedRows:
        told = Reprompted(self.reprompts, groups, step)
        rows: list[list[TrainRow]] = [
            [
                row
                for sample in group.samples
                if sample.index in reprompts
                for row in rows_of(sample, reprompts[sample.index])
            ]
            for group, reprompts in zip(groups, told.by_group, strict=True)
        ]
        return RoutedRows(rows, told.metrics(), told.named(groups))
