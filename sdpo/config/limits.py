"""What one setting may be, taken alone: choices and intervals. `validate` checks them, the documentation shows them."""

from __future__ import annotations

import math
from typing import Any

from sdpo.algorithms.registry import ALGORITHMS
from sdpo.config import parsers

_ACTOR = "actor_rollout_ref.actor"
_DISTILL = f"{_ACTOR}.self_distillation"
_OPTIM = f"{_ACTOR}.optim"
_FSDP = f"{_ACTOR}.fsdp_config"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"
_DTYPES = ("float32", "bfloat16", "float16")
_NO_LIMIT = math.inf

CHOICES: dict[str, tuple[str, ...]] = {
    "cluster": ("ray", "inline"),
    f"{_MODEL}.attn_implementation": ("eager", "sdpa", "flash_attention_2"),
    f"{_ACTOR}.strategy": ("fsdp2",),
    f"{_ACTOR}.policy_loss.loss_mode": tuple(ALGORITHMS),
    f"{_ACTOR}.loss_agg_mode": ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
    f"{_DISTILL}.support": ("student", "teacher", "union"),
    f"{_DISTILL}.loss_normalization": ("component", "all", "micro_batch"),
    f"{_DISTILL}.teacher_regularization": ("ema", "trust-region", "frozen", "live", "snapshot"),
    f"{_DISTILL}.teacher_update_interval": ("batch", "optimizer_step"),
    f"{_DISTILL}.teacher_master_dtype": ("float32", "bfloat16"),
    f"{_DISTILL}.demonstration_choice": ("first", "random", "shortest"),
    f"{_DISTILL}.reprompt_truncation": ("right", "left", "error"),
    f"{_OPTIM}.warmup_style": ("constant", "cosine"),
    f"{_FSDP}.param_dtype": _DTYPES,
    f"{_FSDP}.reduce_dtype": _DTYPES,
    f"{_ROLLOUT}.name": ("vllm", "hf"),
    f"{_ROLLOUT}.lora": ("merged", "adapter"),
    f"{_ROLLOUT}.dtype": ("auto", *_DTYPES),
    f"{_ROLLOUT}.checkpoint_engine.backend": ("auto", "shared_memory", "gloo"),
    "actor_rollout_ref.ref.placement": ("colocated", "remote"),
    "algorithm.adv_estimator": ("grpo", "rloo"),
    "algorithm.kl_penalty": ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"),
    "algorithm.kl_ctrl.type": ("fixed",),
    "algorithm.filter_groups.metric": ("acc", "seq_reward"),
    f"{_ACTOR}.kl_loss_type": ("low_var_kl", "k3", "mse", "k2", "abs", "kl+", "k1+", "low_var_kl+", "k3+"),
    "algorithm.rollout_correction.rollout_is": ("token",),
    "grading.backend": ("local", "http", "modal"),
    "grading.sandbox_level": ("L3", "L3-", "L2", "L1"),
    "grading.feedback_style": ("plain", "leetcode"),
    "grading.reasoning_parser": ("auto", "none", *parsers.REASONING_PARSERS),
    "grading.tool_parser": ("auto", "none", *parsers.TOOL_PARSERS),
    "trainer.device": ("auto", "cpu", "cuda"),
    "trainer.export_dtype": ("auto", *_DTYPES),
    "trainer.resume_mode": ("auto", "disable", "resume_path"),
    "trainer.logger": ("console", "wandb", "trackio", "tensorboard", "mlflow", "swanlab", "file"),
}

# (lowest, highest), both allowed
CLOSED: dict[str, tuple[float, float]] = {
    f"{_DISTILL}.alpha": (0, 1),
    f"{_DISTILL}.teacher_update_rate": (0, 1),
    f"{_DISTILL}.distillation_topk": (1, _NO_LIMIT),
    f"{_DISTILL}.max_reprompt_len": (1, _NO_LIMIT),
    f"{_DISTILL}.teacher_snapshot_every": (1, _NO_LIMIT),
    f"{_OPTIM}.lr": (0, _NO_LIMIT),
    f"{_OPTIM}.weight_decay": (0, _NO_LIMIT),
    f"{_OPTIM}.lr_warmup_steps": (-1, _NO_LIMIT),
    f"{_OPTIM}.lr_warmup_steps_ratio": (0, 1),
    f"{_OPTIM}.lr_stable_steps": (0, _NO_LIMIT),
    f"{_OPTIM}.lr_decay_steps": (-1, _NO_LIMIT),
    f"{_OPTIM}.min_lr_ratio": (0, 1),
    f"{_OPTIM}.clip_grad": (0, _NO_LIMIT),
    f"{_ACTOR}.ppo_mini_batch_size": (1, _NO_LIMIT),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": (1, _NO_LIMIT),
    f"{_ACTOR}.ppo_max_token_len_per_gpu": (1, _NO_LIMIT),
    f"{_ACTOR}.ppo_epochs": (1, _NO_LIMIT),
    f"{_ACTOR}.entropy_coeff": (-_NO_LIMIT, _NO_LIMIT),
    f"{_ACTOR}.kl_loss_coef": (0, _NO_LIMIT),
    "algorithm.kl_ctrl.kl_coef": (0, _NO_LIMIT),
    "algorithm.filter_groups.max_num_gen_batches": (0, _NO_LIMIT),
    "reward_model.overlong_buffer.len": (1, _NO_LIMIT),
    "reward_model.overlong_buffer.penalty_factor": (0, _NO_LIMIT),
    f"{_MODEL}.lora_rank": (0, _NO_LIMIT),
    f"{_MODEL}.lora_alpha": (1, _NO_LIMIT),
    f"{_DISTILL}.teacher_lora_rank": (1, _NO_LIMIT),
    "actor_rollout_ref.ref.ranks": (1, _NO_LIMIT),
    f"{_ROLLOUT}.n": (1, _NO_LIMIT),
    f"{_ROLLOUT}.top_k": (-1, _NO_LIMIT),
    f"{_ROLLOUT}.tensor_model_parallel_size": (1, _NO_LIMIT),
    f"{_ROLLOUT}.replicas": (1, _NO_LIMIT),
    f"{_ROLLOUT}.cpu_kv_cache_gb": (1, _NO_LIMIT),
    f"{_ROLLOUT}.max_num_batched_tokens": (1, _NO_LIMIT),
    f"{_ROLLOUT}.max_num_seqs": (1, _NO_LIMIT),
    f"{_ROLLOUT}.max_log_prob_diff": (0, _NO_LIMIT),
    f"{_ROLLOUT}.max_staleness": (0, 1),
    f"{_ROLLOUT}.retries": (0, _NO_LIMIT),
    f"{_ROLLOUT}.environment.max_seconds": (0, _NO_LIMIT),
    f"{_ROLLOUT}.val_kwargs.n": (1, _NO_LIMIT),
    f"{_ROLLOUT}.val_kwargs.temperature": (0, _NO_LIMIT),
    f"{_ROLLOUT}.val_kwargs.top_k": (-1, _NO_LIMIT),
    "data.train_batch_size": (1, _NO_LIMIT),
    "data.val_batch_size": (1, _NO_LIMIT),
    "data.max_prompt_length": (1, _NO_LIMIT),
    "data.max_response_length": (1, _NO_LIMIT),
    "data.seed": (0, _NO_LIMIT),
    "ray_kwargs.ray_init.num_cpus": (1, _NO_LIMIT),
    "grading.workers": (1, _NO_LIMIT),
    "grading.concurrency": (1, _NO_LIMIT),
    "grading.algebra_processes": (1, _NO_LIMIT),
    "grading.cpu_seconds": (0.1, _NO_LIMIT),
    "grading.memory_mb": (16, _NO_LIMIT),
    "grading.max_output_kb": (1, _NO_LIMIT),
    "grading.feedback_max_chars": (100, _NO_LIMIT),
    "grading.retries": (0, _NO_LIMIT),
    "grading.max_infra_error_frac": (0, 1),
    "trainer.total_epochs": (1, _NO_LIMIT),
    "trainer.total_training_steps": (1, _NO_LIMIT),
    "trainer.n_gpus_per_node": (1, _NO_LIMIT),
    "trainer.nnodes": (1, _NO_LIMIT),
    "trainer.seed": (0, _NO_LIMIT),
    "trainer.val_success_threshold": (-_NO_LIMIT, _NO_LIMIT),
    "trainer.test_freq": (-1, _NO_LIMIT),
    "trainer.save_freq": (-1, _NO_LIMIT),
    "trainer.log_samples": (-1, _NO_LIMIT),
    "trainer.file_wait_s": (0, _NO_LIMIT),
}

# (lowest, highest), the lowest not allowed
OPEN_BELOW: dict[str, tuple[float, float]] = {
    f"{_DISTILL}.is_clip": (0, _NO_LIMIT),
    f"{_DISTILL}.divergence_clip": (0, _NO_LIMIT),
    f"{_OPTIM}.eps": (0, _NO_LIMIT),
    f"{_ACTOR}.clip_ratio": (0, _NO_LIMIT),
    f"{_ACTOR}.clip_ratio_low": (0, _NO_LIMIT),
    f"{_ACTOR}.clip_ratio_high": (0, _NO_LIMIT),
    f"{_ACTOR}.clip_ratio_c": (1, _NO_LIMIT),
    f"{_ROLLOUT}.checkpoint_engine.timeout_s": (0, _NO_LIMIT),
    "actor_rollout_ref.nccl_timeout": (0, _NO_LIMIT),
    f"{_ROLLOUT}.temperature": (0, _NO_LIMIT),
    f"{_ROLLOUT}.top_p": (0, 1),
    f"{_ROLLOUT}.val_kwargs.top_p": (0, 1),
    f"{_ROLLOUT}.gpu_memory_utilization": (0, 1),
    "custom_reward_function.max_seconds": (0, _NO_LIMIT),
    "algorithm.rollout_correction.rollout_is_threshold": (0, _NO_LIMIT),
}

# -1 (all) or at least 1
COUNT_OR_ALL = (
    "data.train_max_samples",
    "data.val_max_samples",
    "trainer.max_actor_ckpt_to_keep",
    f"{_FSDP}.fsdp_size",
)


def allowed(key: str) -> str:
    """In words, e.g. "a number in [0, 1]"; "" where anything of the type goes."""
    if key in CHOICES:
        return " | ".join(CHOICES[key])
    if key in COUNT_OR_ALL:
        return "-1 or a number >= 1"
    if key in CLOSED:
        return _interval(*CLOSED[key], ">=", "[")
    if key in OPEN_BELOW:
        return _interval(*OPEN_BELOW[key], ">", "(")
    return ""


def holds(key: str, value: Any) -> bool:
    """Whether `value` is one that `key` may have. None always is: the type says whether there is a null."""
    if value is None:
        return True
    if key in CHOICES:
        values = value if isinstance(value, list) else [value]
        return all(item in CHOICES[key] for item in values)
    if key in COUNT_OR_ALL:
        return value == -1 or value >= 1
    if key in CLOSED:
        low, high = CLOSED[key]
        return math.isfinite(value) and low <= value <= high
    if key in OPEN_BELOW:
        low, high = OPEN_BELOW[key]
        return math.isfinite(value) and low < value <= high
    return True


def limited_keys() -> tuple[str, ...]:
    return (*CHOICES, *CLOSED, *OPEN_BELOW, *COUNT_OR_ALL)


def _interval(low: float, high: float, sign: str, bracket: str) -> str:
    if math.isfinite(high):
        return f"a number in {bracket}{low}, {high}]"
    return f"a number {sign} {low}" if math.isfinite(low) else "a finite number"
