"""GRPO, the baseline: group-relative advantages and the clipped policy gradient, both verl's own functions.

Everything else is shared with SDPO: sampling, grading, rows, denominators, temperature, rollout correction.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from sdpo.algorithms.importance import rollout_importance
from sdpo.algorithms.policy import loss_temperature, policy_terms
from sdpo.algorithms.reduce import metric_sums
from sdpo.algorithms.rows import fraction, split_into_steps, usable
from sdpo.algorithms.scores import LossOutput, ResponseScores, Scores, TokenBatch
from sdpo.config.schema import Config
from sdpo.records import Group, TrainBatch, TrainRow

if TYPE_CHECKING:
    import torch

REWARD_TOLERANCE = 1e-9  # rewards closer than this are equal: ten of ten tests may sum to 0.9999999999999999


def group_advantages(
    rewards: Sequence[float | None], group_ids: Sequence[Hashable], divide_by_std: bool
) -> list[float | None]:
    """Advantage of each reward within its group; None stays None and is in no statistic.

    A group of one, or whose rewards are all equal, has advantage exactly 0: rounding residue divided by a tiny standard
    deviation would pass for a signal.

    >>> group_advantages([1.0, 0.0, 0.0, 0.0], ["a", "b", "a", "b"], divide_by_std=False)
    [0.5, 0.0, -0.5, 0.0]
    """
    members: dict[Hashable, list[int]] = {}
    for position, (reward, group_id) in enumerate(zip(rewards, group_ids, strict=True)):
        if reward is not None:
            members.setdefault(group_id, []).append(position)
    advantages: list[float | None] = [None if reward is None else 0.0 for reward in rewards]
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


class Grpo:
    """Group Relative Policy Optimization with PPO's clip and dual clip."""

    needs_teacher = False

    def __init__(self, config: Config, reprompts: object | None = None) -> None:
        self.actor = config.actor_rollout_ref.actor
        self.temperature = loss_temperature(config.actor_rollout_ref.rollout.temperature)
        self.correction = config.algorithm.rollout_correction
        self.divide_by_std = config.algorithm.norm_adv_by_std_in_grpo

    def describe(self) -> str:
        scale = "divided by the group's standard deviation" if self.divide_by_std else "not scaled"
        return f"GRPO, advantages {scale}, {self.actor.loss_agg_mode}"

    def needs_old_log_probs(self, num_optimizer_steps: int) -> bool:
        return num_optimizer_steps > 1

    # -- on the controller ---------------------------------------------------------------------------------------------

    def build_batch(self, groups: list[Group], step: int) -> TrainBatch:
        """Rows are the usable samples of groups whose rewards differ; a group is a prompt at its place in the batch."""
        kept = [[sample for sample in group.samples if usable(sample)] for group in groups]
        rewards = [sample.grade.reward for samples in kept for sample in samples]
        owners = [number for number, samples in enumerate(kept) for _ in samples]
        advantages = iter(group_advantages(rewards, owners, self.divide_by_std))
        rows: list[list[TrainRow]] = []
        constant = 0
        for group, samples in zip(groups, kept, strict=True):
            own = [next(advantages) for _ in samples]
            mixed = any(own)
            constant += bool(samples) and not mixed
            pairs = zip(samples, own, strict=True) if mixed else ()
            rows.append(
                [
                    TrainRow(
                        prompt_uid=group.prompt.uid,
                        sample_index=sample.index,
                        prompt_ids=sample.prompt_ids,
                        response_ids=sample.response_ids,
                        advantage=advantage,
                        sampler_logprobs=sample.sampler_logprobs,
                    )
                    for sample, advantage in pairs
                ]
            )
        mini_batches, empty = split_into_steps(rows, self.actor.ppo_mini_batch_size)
        metrics = {
            "grpo/zero_advantage_group_frac": fraction(constant, sum(bool(samples) for samples in kept)),
            "grpo/empty_mini_batches": float(empty),
        }
        return TrainBatch(mini_batches, metrics)

    # -- in the worker -------------------------------------------------------------------------------------------------

    def loss(self, student: ResponseScores, teacher: Scores | None, batch: TokenBatch) -> LossOutput:
        """verl's clipped loss over the padded micro-batch, times the weights of rows and of the rollout correction."""
        from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla

        if batch.advantages is None:
            raise ValueError("GRPO's loss needs an advantage for every row")
        coeff = self.actor.entropy_coeff
        log_prob, entropy = policy_terms(student, batch.response_ids, self.temperature, entropy_gradient=coeff != 0)
        rollout = rollout_importance(log_prob, batch, self.correction)
        old = log_prob.detach() if batch.old_log_probs is None else batch.old_log_probs
        pad, config = _Padding(batch), self._verl_config(batch)
        mask = pad(log_prob.new_ones(log_prob.shape))
        loss, statistics = compute_policy_loss_vanilla(
            old_log_prob=pad(old),
            log_prob=pad(log_prob),
            advantages=pad(batch.advantages.to(log_prob.dtype)[batch.row]),
            response_mask=mask,
            loss_agg_mode=self.actor.loss_agg_mode,
            config=config,
            rollout_is_weights=pad(rollout.weight * batch.weights.to(log_prob.dtype)[batch.row]),
        )
        if coeff:
            bonus = agg_loss(pad(entropy), mask, self.actor.loss_agg_mode, **config.global_batch_info)
            loss = loss - coeff * bonus
        count = float(log_prob.numel())
        metrics = {name: (value * count, count) for name, value in statistics.items() if count}
        return LossOutput(loss, metrics | metric_sums({"actor/entropy": entropy, **rollout.values}))

    def _verl_config(self, batch: TokenBatch) -> Any:
        from verl.workers.config import ActorConfig

        return ActorConfig(
            strategy=self.actor.strategy,
            rollout_n=1,
            use_dynamic_bsz=True,
            clip_ratio=self.actor.clip_ratio,
            clip_ratio_low=self.actor.clip_ratio_low,
            clip_ratio_high=self.actor.clip_ratio_high,
            clip_ratio_c=self.actor.clip_ratio_c,
            loss_agg_mode=self.actor.loss_agg_mode,
            global_batch_info={
                "dp_size": 1,  # micro-batches and ranks are added up, not averaged
                "batch_num_tokens": max(batch.tokens, 1),
                "global_batch_size": max(batch.sequences, 1),
                "loss_scale_factor": batch.max_response_length,
            },
        )


class _Padding:
    """[N] -> [R, longest], zeros behind each row."""

    def __init__(self, batch: TokenBatch) -> None:
        import torch

        lengths = batch.row_lengths
        self.shape = (lengths.shape[0], int(lengths.max()) if lengths.numel() else 0)
        starts = lengths.cumsum(0) - lengths
        self.row = batch.row
        self.column = torch.arange(batch.row.shape[0], device=batch.row.device) - starts[batch.row]

    def __call__(self, flat: torch.Tensor) -> torch.Tensor:
        return flat.new_zeros(self.shape).index_put((self.row, self.column), flat)
