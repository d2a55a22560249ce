"""GRPO, the baseline, and its relatives (RLOO, GSPO): advantages within the group and the clipped policy gradient, both
verl's own functions.

Everything else is shared with SDPO: sampling, grading, rows, denominators, temperature, rollout correction.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sdpo.algorithms.registry import descriptor_of
from sdpo.algorithms.rows import REWARD_TOLERANCE, fraction, rows_of, usable
from sdpo.algorithms.shaping import shaped_reward
from sdpo.config.schema import Config
from sdpo.records import Group, PolicyGradient, RoutedRows, Sample, TrainRow


def group_advantages(
    rewards: Sequence[float], group_ids: Sequence[Hashable], divide_by_std: bool, estimator: str = "grpo"
) -> list[float]:
    """Advantage of each reward within its group: over the mean of all (grpo) or of the others (rloo, arXiv 2402.14740).

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
        values = _verl_advantages([rewards[position] for position in flat], owner, divide_by_std, estimator)
        for position, value in zip(flat, values, strict=True):
            advantages[position] = value
    return advantages


def _spread(rewards: list[float]) -> float:
    return max(rewards) - min(rewards)


def _verl_advantages(rewards: list[float], owner: list[int], divide_by_std: bool, estimator: str) -> list[float]:
    """verl wants one reward per token: every response is one token long here."""
    import numpy as np
    import torch
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, compute_rloo_outcome_advantage

    column = torch.tensor(rewards, dtype=torch.float64)[:, None]
    given = column, torch.ones_like(column), np.array(owner)
    if estimator == "rloo":
        return compute_rloo_outcome_advantage(*given)[0][:, 0].tolist()
    return compute_grpo_outcome_advantage(*given, norm_adv_by_std_in_grpo=divide_by_std)[0][:, 0].tolist()


def advantages_of(groups: list[Group], config: Config) -> list[dict[int, float]]:
    """For each group the advantages of its usable samples, by index. A group is a prompt at its place in the batch."""
    settings = config.algorithm
    kept = [{s.index: shaped_reward(s, config) for s in group.samples if usable(s)} for group in groups]
    owners = [number for number, rewards in enumerate(kept) for _ in rewards]
    flat = [reward for rewards in kept for reward in rewards.values()]
    advantages = iter(group_advantages(flat, owners, settings.norm_adv_by_std_in_grpo, settings.adv_estimator))
    return [{index: next(advantages) for index in rewards} for rewards in kept]


def policy_rows(sample: Sample, advantages: dict[int, float], everywhere: bool) -> list[TrainRow]:
    """A sample's rows with its advantage; `advantages`: of its group. Where rewards do not differ they have no weight:
    no forward pass, but their tokens count in the denominators, as in verl. everywhere: something else than the
    advantage, a penalty, wants all of them."""
    weight = float(everywhere or any(advantages.values()))
    return rows_of(sample, policy_gradient=PolicyGradient(advantages[sample.index], weight))


def constant_group_frac(advantages: list[dict[int, float]]) -> float:
    """Share of the groups with a usable sample whose advantages are all 0."""
    graded = [own for own in advantages if own]
    return fraction(sum(not any(own.values()) for own in graded), len(graded))


class Grpo:
    """Every usable sample is pushed by its advantage."""

    def __init__(self, config: Config, reprompts: object) -> None:
        self.config = config

    def describe(self) -> str:
        actor, settings = self.config.actor_rollout_ref.actor, self.config.algorithm
        scale = "divided by the group's standard deviation" if settings.norm_adv_by_std_in_grpo else "not scaled"
        others = "over the other samples' mean" if settings.adv_estimator == "rloo" else scale
        kl = f", KL loss {actor.kl_loss_type} x {actor.kl_loss_coef:g}" if actor.use_kl_loss else ""
        kl += f", KL in the reward x {settings.kl_ctrl.kl_coef:g}" if settings.use_kl_in_reward else ""
        return f"{descriptor_of(self.config).label}, advantages {others}, {actor.loss_agg_mode}{kl}"

    def route(self, groups: list[Group], step: int) -> RoutedRows:
        advantages = advantages_of(groups, self.config)
        everywhere = self.config.actor_rollout_ref.actor.use_kl_loss
        rows = [
            [row for s in group.samples if s.index in own for row in policy_rows(s, own, everywhere)]
            for group, own in zip(groups, advantages, strict=True)
        ]
        return RoutedRows(rows, {"grpo/zero_advantage_group_frac": constant_group_frac(advantages)})
