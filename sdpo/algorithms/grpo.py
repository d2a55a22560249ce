"""GRPO, the baseline: group-relative advantages and the clipped policy gradient, both verl's own functions.

Everything else is shared with SDPO: sampling, grading, rows, denominators, temperature, rollout correction.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sdpo.algorithms.rows import REWARD_TOLERANCE, fraction, rows_of, usable
from sdpo.config.schema import Config
from sdpo.records import Group, PolicyGradient, RoutedRows


def group_advantages(rewards: Sequence[float], group_ids: Sequence[Hashable], divide_by_std: bool) -> list[float]:
    """Advantage of each reward within its group.

    A group of one, or whose rewards are all equal, has advantage exactly 0: rounding residue divided by a tiny standard
    deviation would pass for a signal.

    >>> group_advantages([1.0, 0.0, 0.0, 0.0], ["a", "b", "a", "b"], divide_by_std=False)
    [0.5, 0.0, -0.5, 0.0]
    """
    members: dict[Hashable, list[int]] = {}
    for position, group_id in enumerate(group_ids):
        members.setdefault(group_id, []).append(position)
    advantages = [0.0] * len(rewards)
    mixed = [at for at in members.values() if _spread([rewards[i] for i in at]) > REWARD_TOLERANCE]
    if mixed:
        flat = [position for at in mixed for position in at]
        owner = [number for number, at in enumerate(mixed) for _ in at]
        values = _verl_advantages([rewards[position] for position in flat], owner, divide_by_std)
        for position, value in zip(flat, values, strict=True):
            advantages[position] = value
    return advantages


def _spread(rewards: list[float]) -> float:
    return max(rewards) - min(rewards)


def _verl_advantages(rewards: list[float], owner: list[int], divide_by_std: bool) -> list[float]:
    """verl wants one reward per token: every response is one token long here."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    column = torch.tensor(rewards, dtype=torch.float64)[:, None]
    advantages, _ = compute_grpo_outcome_advantage(
        column, torch.ones_like(column), np.array(owner), norm_adv_by_std_in_grpo=divide_by_std
    )
    return advantages[:, 0].tolist()


def advantages_of(groups: list[Group], divide_by_std: bool) -> list[dict[int, float]]:
    """For each group the advantages of its usable samples, by index. A group is a prompt at its place in the batch."""
    kept = [{s.index: s.reward for s in group.samples if usable(s) and s.reward is not None} for group in groups]
    owners = [number for number, rewards in enumerate(kept) for _ in rewards]
    advantages = iter(group_advantages([r for rewards in kept for r in rewards.values()], owners, divide_by_std))
    return [{index: next(advantages) for index in rewards} for rewards in kept]


def constant_group_frac(advantages: list[dict[int, float]]) -> float:
    """Share of the groups with a usable sample whose advantages are all 0."""
    graded = [own for own in advantages if own]
    return fraction(sum(not any(own.values()) for own in graded), len(graded))


class Grpo:
    """Every usable sample of a group whose rewards differ is pushed by its advantage."""

    def __init__(self, config: Config, reprompts: object) -> None:
        self.config = config
        self.divide_by_std = config.algorithm.norm_adv_by_std_in_grpo

    def describe(self) -> str:
        scale = "divided by the group's standard deviation" if self.divide_by_std else "not scaled"
        return f"GRPO, advantages {scale}, {self.config.actor_rollout_ref.actor.loss_agg_mode}"

    def route(self, groups: list[Group], step: int) -> RoutedRows:
        advantages = advantages_of(groups, self.divide_by_std)
        rows = [
            [
                row
                for sample in group.samples
                if sample.index in own and any(own.values())
                for row in rows_of(sample, policy_gradient=PolicyGradient(own[sample.index]))
            ]
            for group, own in zip(groups, advantages, strict=True)
        ]
        return RoutedRows(rows, {"grpo/zero_advantage_group_frac": constant_group_frac(advantages)})
