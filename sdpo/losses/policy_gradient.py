"""The clipped policy gradient of PPO, GRPO and GSPO, and the penalty for leaving the reference policy: verl's own
functions."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from sdpo.algorithms.registry import descriptor_of
from sdpo.config.schema import Config
from sdpo.kernels.lazy_logits import ResponseScores, TeacherScores
from sdpo.kernels.policy import loss_temperature, policy_terms
from sdpo.losses.importance import rollout_importance
from sdpo.losses.reduce import metric_sums, token_weights
from sdpo.losses.token_batch import LossOutput, TokenBatch

NO_DUAL_CLIP = 1e9  # a ratio that no token reaches


class PolicyGradientLoss:
    """Sum over tokens of aggregation weight * (rollout correction * clipped loss of the token + KL penalty)."""

    uses_old_log_probs = True

    def __init__(self, config: Config) -> None:
        self.actor = config.actor_rollout_ref.actor
        self.temperature = loss_temperature(config.actor_rollout_ref.rollout.temperature)
        self.correction = config.algorithm.rollout_correction
        self.sequence_ratio = descriptor_of(config).sequence_ratio

    def __call__(self, student: ResponseScores, teacher: TeacherScores | None, batch: TokenBatch) -> LossOutput:
        from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, kl_penalty

        if batch.advantages is None:
            raise ValueError("the policy gradient needs an advantage for every token")
        coeff = self.actor.entropy_coeff
        log_prob, entropy = policy_terms(student, batch.response_ids, self.temperature, entropy_gradient=coeff != 0)
        rollout = rollout_importance(log_prob, batch, self.correction)
        old = log_prob.detach() if batch.old_log_probs is None else batch.old_log_probs
        weights = self._weights(batch, log_prob.dtype)
        if self.sequence_ratio:
            old = _of_sequences(log_prob.detach(), old, batch)
        loss, statistics = compute_policy_loss_vanilla(
            old_log_prob=old[None],
            log_prob=log_prob[None],
            advantages=batch.advantages.to(log_prob.dtype)[None],
            response_mask=log_prob.new_ones(1, log_prob.shape[0]),
            loss_agg_mode="token-sum",  # what divides is in the weights: rows of one sample may be in several passes
            config=self._verl_config,
            rollout_is_weights=(rollout.weight * weights)[None],
        )
        if coeff:
            loss = loss - coeff * (weights * entropy).sum()
        values = {"actor/entropy": entropy, **rollout.values}
        if self.actor.use_kl_loss:
            if batch.reference_log_probs is None:
                raise ValueError("the KL loss needs the reference policy's log-prob of every token")
            kl = kl_penalty(log_prob, batch.reference_log_probs.to(log_prob.dtype), self.actor.kl_loss_type)
            loss = loss + self.actor.kl_loss_coef * (weights * kl).sum()
            values["actor/kl_loss"] = kl
        count = float(log_prob.numel())
        metrics = {name: (value * count, count) for name, value in statistics.items() if count}
        return LossOutput(loss, metrics | metric_sums(values))

    @cached_property
    def _verl_config(self) -> Any:
        from verl.workers.config import ActorConfig as VerlActorConfig

        return VerlActorConfig(
            strategy=self.actor.strategy,
            rollout_n=1,
            use_dynamic_bsz=True,
            clip_ratio=self.actor.clip_ratio,
            clip_ratio_low=self.actor.clip_ratio_low,
            clip_ratio_high=self.actor.clip_ratio_high,
            clip_ratio_c=NO_DUAL_CLIP if self.sequence_ratio else self.actor.clip_ratio_c,
        )

    def _weights(self, batch: TokenBatch, dtype: torch.dtype) -> torch.Tensor:
        """As for distillation, but in seq-mean-token-sum-norm verl divides by the number of rows as well."""
        weights = token_weights(batch, self.actor.loss_agg_mode, "component", dtype)
        rows = max(batch.sequences, 1) if self.actor.loss_agg_mode == "seq-mean-token-sum-norm" else 1
        return weights / rows


def _of_sequences(log_prob: torch.Tensor, old: torch.Tensor, batch: TokenBatch) -> torch.Tensor:
    """Old log-probs [N] that give every token its row's ratio, exp(mean over the row of log p - log p_old), and the
    gradient of its own log-prob (GSPO, arXiv 2507.18071, equation 14)."""
    rows = batch.row_lengths.shape[0]
    means = log_prob.new_zeros(rows).index_add(0, batch.row, log_prob - old.to(log_prob.dtype))
    counts = torch.bincount(batch.row, minlength=rows).clamp(min=1)
    return log_prob - (means / counts)[batch.row]
