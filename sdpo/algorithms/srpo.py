"""SRPO (arXiv 2604.02288): failures that there is something to tell about are distilled, the rest gets GRPO's gradient.

The advantages are those of the whole group: a success is still measured against the failures that are distilled. One
normalisation is over all routed tokens: the root configuration sets `loss_normalization=all`.
"""

from __future__ import annotations

from sdpo.algorithms.grpo import advantages_of, constant_group_frac, policy_rows
from sdpo.algorithms.rows import fraction, is_success, rows_of, weighted
from sdpo.algorithms.sdpo import Reprompted, RepromptSource
from sdpo.config.schema import Config
from sdpo.records import Group, Reprompt, RoutedRows, TrainRow


class Srpo:
    """A row carries one of two components of the loss."""

    def __init__(self, config: Config, reprompts: RepromptSource) -> None:
        self.config, self.reprompts = config, reprompts
        self.threshold = config.actor_rollout_ref.actor.self_distillation.success_reward_threshold

    def describe(self) -> str:
        actor = self.config.actor_rollout_ref.actor
        teacher = actor.self_distillation.teacher_regularization
        return f"SRPO, failures distilled (teacher {teacher}), the rest GRPO, {actor.loss_agg_mode}"

    def route(self, groups: list[Group], step: int) -> RoutedRows:
        told = Reprompted(self.reprompts, groups, step)
        advantages = advantages_of(groups, self.config)
        rows = [self._rows(*parts) for parts in zip(groups, told.by_group, advantages, strict=True)]
        flat = [row for group in rows for row in group if weighted(row)]
        metrics = {
            "srpo/distilled_frac": fraction(sum(bool(row.distillation) for row in flat), len(flat)),
            "grpo/zero_advantage_group_frac": constant_group_frac(advantages),
        }
        return RoutedRows(rows, told.metrics() | metrics, told.named(groups))

    def _rows(self, group: Group, reprompts: dict[int, Reprompt], advantages: dict[int, float]) -> list[TrainRow]:
        rows = []
        for sample in group.samples:
            reprompt = reprompts.get(sample.index)
            if sample.index not in advantages:
                continue
            if reprompt is not None and not is_success(sample, self.threshold):
                rows += rows_of(sample, reprompt)
            else:
                rows += policy_rows(sample, advantages, self.config.actor_rollout_ref.actor.use_kl_loss)
        return rows
