"""The clipped policy gradient of PPO and GRPO: verl's own function, token by token."""

from __future__ import annotations

from typing import Any

import torch

from sdpo.config.schema import ActorConfig, Config
from sdpo.kernels.lazy_logits import ResponseScores, TeacherScores
from sdpo.kernels.policy import loss_temperature, policy_terms
from sdpo.losses.importance import rollout_importance
from sdpo.losses.reduce import metric_sums, token_weights
from sdpo.losses.token_batch import LossOutput, TokenBatch


class PolicyGradientLoss:
    """Sum over tokens of (aggregation weight * rollout correction * clipped loss of the token)."""

    uses_old_log_probs = True

    def __init__(self, config: Config) -> None:
        self.actor = config.actor_rollout_ref.actor
        self.temperature = loss_temperature(config.actor_rollout_ref.rollout.temperature)
        self.correction = config.algorithm.rollout_correction

    def __call__(self, student: ResponseScores, teacher: TeacherScores | None, batch: TokenBatch) -> LossOutput:
        from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

        if batch.advantages is None:
            raise ValueError("the policy gradient needs an advantage for every token")
        coeff = self.actor.entropy_coeff
        log_prob, entropy = policy_terms(student, batch.response_ids, self.temperature, entropy_gradient=coeff != 0)
        rollout = rollout_importance(log_prob, batch, self.correction)
        old = log_prob.detach() if batch.old_log_probs is None else batch.old_log_probs
        weights = self._weights(batch, log_prob.dtype)
        loss, statistics = compute_policy_loss_vanilla(
            old_log_prob=old[None],
            log_prob=log_prob[None],
            advantages=batch.advantages.to(log_prob.dtype)[None],
            response_mask=log_prob.new_ones(1, log_prob.shape[0]),
            loss_agg_mode="token-sum",  # what divides is in the weights: rows of one sample may be in several passes
            config=_verl_config(self.actor),
            rollout_is_weights=(rollout.weight * weights)[None],
        )
        if coeff:
            loss = loss - coeff * (weights * entropy).sum()
        count = float(log_prob.numel())
        metrics = {name: (value * count, count) for name, value in statistics.items() if count}
        return LossOutput(loss, metrics | metric_sums({"actor/entropy": entropy, **rollout.values}))

    def _weights(self, batch: TokenBatch, dtype: torch.dtype) -> torch.Tensor:
        """As for distillation, but in seq-mean-token-sum-norm verl divides by the number of rows as well."""
        weights = token_weights(batch, self.actor.loss_agg_mode, "component", dtype)
        rows = max(batch.sequences, 1) if self.actor.loss_agg_mode == "seq-mean-token-sum-norm" else 1
        return weights / rows


def _verl_config(actor: ActorConfig) -> Any:
    from verl.workers.config import ActorConfig as VerlActorConfig

    return VerlActorConfig(
        strategy=actor.strategy,
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio=actor.clip_ratio,
        clip_ratio_low=actor.clip_ratio_low,
        clip_ratio_high=actor.clip_ratio_high,
        clip_ratio_c=actor.clip_ratio_c,
    )
