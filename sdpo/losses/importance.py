"""Importance weights of single tokens: all detached, all capped from above only."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from sdpo.config.schema import RolloutCorrectionConfig
from sdpo.errors import ConfigError, problem
from sdpo.losses.token_batch import TokenBatch

LOG_LIMIT = 20.0  # of a log-ratio, either way: exp stays finite in float32


def capped_ratio(log_prob: torch.Tensor, base_log_prob: torch.Tensor, cap: float | None) -> torch.Tensor:
    """min(exp(log_prob - base_log_prob), cap), detached; [N] each. cap None: no upper limit but exp(20)."""
    ratio = (log_prob.detach() - base_log_prob.detach()).clamp(-LOG_LIMIT, LOG_LIMIT).exp()
    return ratio if cap is None else ratio.clamp(max=cap)


@dataclass
class Importance:
    """`weight` [N] multiplies token losses; `values` are statistics, [N] each, by metric name."""

    weight: torch.Tensor
    values: dict[str, torch.Tensor] = field(default_factory=dict)


def policy_importance(log_prob: torch.Tensor, batch: TokenBatch, cap: float | None) -> Importance:
    """p / p_old, capped. Without old log-probs the policy has not moved and every weight is 1; cap None: off."""
    weight = torch.ones_like(log_prob)
    if cap is None:
        return Importance(weight)
    if batch.old_log_probs is None:
        return Importance(weight, {"sdpo/is_ratio_mean": weight, "sdpo/is_clip_frac": torch.zeros_like(weight)})
    raw = capped_ratio(log_prob, batch.old_log_probs, None)
    return Importance(raw.clamp(max=cap), {"sdpo/is_ratio_mean": raw, "sdpo/is_clip_frac": (raw > cap).to(raw)})


def rollout_importance(log_prob: torch.Tensor, batch: TokenBatch, config: RolloutCorrectionConfig) -> Importance:
    """p_old / p_sampler, capped: corrects for the inference engine's rounding and staleness.

    The difference of the two log-probs is reported whenever the sampler's are known, also with the correction off.
    """
    if batch.sampler_log_probs is None:
        if config.rollout_is is not None:
            fix = "set rollout.calculate_log_probs=true or rollout_correction.rollout_is=null"
            raise ConfigError(problem("sampler log-probs", None, "one per response token with rollout_is=token", fix))
        return Importance(torch.ones_like(log_prob))
    old = log_prob.detach() if batch.old_log_probs is None else batch.old_log_probs
    difference = (old - batch.sampler_log_probs).abs()
    values = {"rollout/log_prob_diff_mean": difference, "rollout/log_prob_diff_max": difference}
    if config.rollout_is is None:
        return Importance(torch.ones_like(log_prob), values)
    if config.rollout_is != "token":
        raise ConfigError(problem("algorithm.rollout_correction.rollout_is", config.rollout_is, "token or null"))
    raw = capped_ratio(old, batch.sampler_log_probs, None)
    cap = config.rollout_is_threshold
    weight = raw if cap is None else raw.clamp(max=cap)
    clipped = torch.zeros_like(raw) if cap is None else (raw > cap).to(raw)
    return Importance(weight, values | {"rollout/is_ratio_mean": raw, "rollout/is_clip_frac": clipped})
