"""Do the engine that samples and the trainer compute the same model?"""

from __future__ import annotations

from collections.abc import Mapping

from sdpo.config.schema import Config
from sdpo.errors import RolloutError

MEAN = "rollout/log_prob_diff_mean"
FLOAT32, HALF = 0.01, 0.2  # nats, far above what rounding explains: 1e-5, and 0.01 to 0.05


def check_agreement(metrics: Mapping[str, float], config: Config, step: int) -> None:
    """Raises RolloutError when the mean difference of the sampled tokens' log-probs is above the limit of
    `rollout.max_log_prob_diff`: a sample of another distribution says nothing about this one."""
    limit, found = difference_limit(config), metrics.get(MEAN, 0.0)
    if limit is not None and found > limit:
        raise RolloutError(
            f"{MEAN}: {found:.3g} nats in step {step}, more than {limit:g}: rollout engine and trainer do not compute"
            " the same model; see docs/models.md, try actor_rollout_ref.rollout.name=hf, or raise"
            " actor_rollout_ref.rollout.max_log_prob_diff (0: never stop)"
        )


def difference_limit(config: Config) -> float | None:
    """In nats; None: there is none. Log-probs of a distribution cut by top-p or top-k are not the trainer's,
    nor are those of earlier weights."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.max_log_prob_diff is not None:
        return rollout.max_log_prob_diff or None
    if rollout.top_p < 1 or rollout.top_k > 0 or rollout.max_staleness:
        return None
    trained = config.actor_rollout_ref.actor.fsdp_config.param_dtype
    return FLOAT32 if {_engine_dtype(config), trained} == {"float32"} else HALF


def _engine_dtype(config: Config) -> str:
    import torch

    dtype, device = config.actor_rollout_ref.rollout.dtype, config.trainer.device
    if dtype != "auto":
        return dtype
    on_gpu = torch.cuda.is_available() if device == "auto" else device == "cuda"
    return "bfloat16" if on_gpu else "float32"
