"""Which keys exist, which had another name, and which of verl's have nothing to set here. Standard library only."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sdpo.config import fields
from sdpo.errors import ConfigError, problem

log = logging.getLogger(__name__)

_ACTOR = "actor_rollout_ref.actor"
_DISTILL = f"{_ACTOR}.self_distillation"
_FSDP = f"{_ACTOR}.fsdp_config"
_MODEL = "actor_rollout_ref.model"
_ROLLOUT = "actor_rollout_ref.rollout"
_REF = "actor_rollout_ref.ref"

RENAMED = {
    f"{_DISTILL}.ema_update_rate": f"{_DISTILL}.teacher_update_rate",
    f"{_ACTOR}.grad_clip": f"{_ACTOR}.optim.clip_grad",
    f"{_ACTOR}.optim.lr_scheduler_type": f"{_ACTOR}.optim.warmup_style",
    f"{_ACTOR}.tis_imp_ratio_cap": "algorithm.rollout_correction.rollout_is_threshold",
    "algorithm.rollout_is_threshold": "algorithm.rollout_correction.rollout_is_threshold",
    f"{_FSDP}.dtype": f"{_FSDP}.param_dtype",
    f"{_FSDP}.mixed_precision.param_dtype": f"{_FSDP}.param_dtype",
    f"{_FSDP}.mixed_precision.reduce_dtype": f"{_FSDP}.reduce_dtype",
    f"{_REF}.fsdp_config.param_offload": f"{_DISTILL}.teacher_offload",
    f"{_MODEL}.lora.rank": f"{_MODEL}.lora_rank",
    f"{_MODEL}.lora.alpha": f"{_MODEL}.lora_alpha",
    f"{_ROLLOUT}.prompt_length": "data.max_prompt_length",
    f"{_ROLLOUT}.response_length": "data.max_response_length",
    **{
        f"reward.reward_kwargs.overlong_buffer_cfg.{name}": f"reward_model.overlong_buffer.{name}"
        for name in ("enable", "len", "penalty_factor")
    },
    "reward.custom_reward_function.path": "custom_reward_function.path",
    "reward.custom_reward_function.name": "custom_reward_function.name",
    "reward.custom_reward_function.reward_kwargs": "custom_reward_function.reward_kwargs",
}


@dataclass(frozen=True)
class Settled:
    """A key of verl with nothing to set here. `values`: those that say what is done anyway; None: every value, with a
    warning, because nothing depends on it."""

    reason: str
    values: tuple[Any, ...] | None = None


_BUDGET = "the actor's token budget is used"
_OFFLOAD = f"for parameters and optimizer in CPU memory set {_FSDP}.offload_policy=true"
_OWN_CHOICE = "left to the engine"
_IN_SAMPLES = "prompts and responses are always in samples.jsonl; see trainer.log_samples"

SETTLED = {
    "data.gen_batch_size": Settled("data.train_batch_size prompts are drawn at a time", (None,)),
    "data.truncation": Settled("prompts are never cut; see data.filter_overlong_prompts", ("error",)),
    "data.return_raw_chat": Settled("prompts always stay chat messages"),
    "data.validation_shuffle": Settled("validation keeps the order of the file", (False,)),
    "data.dataloader_num_workers": Settled("rows are read once, at the start"),
    "data.filter_overlong_prompts_workers": Settled("rows are read once, at the start"),
    "actor_rollout_ref.hybrid_engine": Settled("trainer and engine share the machine", (True,)),
    f"{_MODEL}.use_remove_padding": Settled("rows are always packed without padding", (True,)),
    f"{_MODEL}.use_shm": Settled("not supported", (False,)),
    f"{_MODEL}.use_liger": Settled("not supported", (False,)),
    f"{_MODEL}.use_fused_kernels": Settled("not supported", (False,)),
    f"{_MODEL}.enable_activation_offload": Settled("not supported", (False,)),
    f"{_ACTOR}.ppo_micro_batch_size": Settled(f"use {_ACTOR}.ppo_micro_batch_size_per_gpu", (None,)),
    f"{_ACTOR}.ulysses_sequence_parallel_size": Settled("sequences are not split over ranks", (1,)),
    f"{_ACTOR}.shuffle": Settled("rows keep their order in every pass", (False,)),
    f"{_ACTOR}.data_loader_seed": Settled("rows keep their order in every pass"),
    f"{_ACTOR}.use_torch_compile": Settled("the actor is not compiled"),
    f"{_FSDP}.param_offload": Settled(_OFFLOAD, (False,)),
    f"{_FSDP}.model_dtype": Settled("master weights are float32", ("fp32", "float32")),
    f"{_FSDP}.forward_prefetch": Settled("only for FSDP1", (False,)),
    f"{_ROLLOUT}.mode": Settled("responses stream to the grader either way", ("sync", "async")),
    f"{_ROLLOUT}.do_sample": Settled("training responses are sampled", (True,)),
    f"{_ROLLOUT}.enable_chunked_prefill": Settled(_OWN_CHOICE),
    f"{_ROLLOUT}.enable_prefix_caching": Settled("the cache is on, and reset after every update", (True,)),
    f"{_ROLLOUT}.load_format": Settled("the engine starts from the model folder and gets the student's weights"),
    f"{_ROLLOUT}.layered_summon": Settled("weights travel a layer at a time"),
    f"{_ROLLOUT}.disable_log_stats": Settled(_OWN_CHOICE),
    f"{_ROLLOUT}.log_prob_micro_batch_size": Settled(_BUDGET),
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": Settled(_BUDGET),
    f"{_ROLLOUT}.log_prob_use_dynamic_bsz": Settled(_BUDGET),
    f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": Settled(_BUDGET),
    f"{_REF}.log_prob_micro_batch_size": Settled(_BUDGET),
    f"{_REF}.log_prob_micro_batch_size_per_gpu": Settled(_BUDGET),
    f"{_REF}.log_prob_use_dynamic_bsz": Settled(_BUDGET),
    f"{_REF}.log_prob_max_token_len_per_gpu": Settled(_BUDGET),
    "algorithm.gamma": Settled("outcome rewards have no discount", (1,)),
    "algorithm.lam": Settled("there is no critic", (1,)),
    "algorithm.kl_ctrl.horizon": Settled("the price of a nat does not move"),
    "algorithm.kl_ctrl.target_kl": Settled("the price of a nat does not move"),
    "algorithm.use_pf_ppo": Settled("not supported", (False,)),
    "critic": Settled("there is no critic"),
    "reward_model.enable": Settled("rewards come from graders; see custom_reward_function", (False, None)),
    **{
        f"reward_model.{name}": Settled("rewards come from graders; see custom_reward_function")
        for name in (
            "enable_resource_pool",
            "n_gpus_per_node",
            "nnodes",
            "strategy",
            "model",
            "micro_batch_size",
            "micro_batch_size_per_gpu",
            "max_length",
            "use_dynamic_bsz",
            "forward_max_token_len_per_gpu",
            "reward_manager",
            "reward_kwargs",
            "launch_reward_fn_async",
            "sandbox_fusion",
            "num_workers",
            "use_reward_loop",
            "rollout",
        )  # fmt: skip
    },
    "trainer.critic_warmup": Settled("there is no critic", (0,)),
    "trainer.balance_batch": Settled("ranks are always balanced by tokens", (True,)),
    "trainer.log_val_generations": Settled(_IN_SAMPLES),
    "trainer.rollout_data_dir": Settled(_IN_SAMPLES),
    "trainer.validation_data_dir": Settled(_IN_SAMPLES),
    "trainer.default_hdfs_dir": Settled("checkpoints go to trainer.default_local_dir", (None,)),
    "trainer.del_local_ckpt_after_load": Settled("see trainer.max_actor_ckpt_to_keep", (False,)),
    "trainer.max_critic_ckpt_to_keep": Settled("there is no critic"),
}


def exists(key: str) -> bool:
    """Whether `key` takes a value: a key of the schema, or anything below a free-form dictionary."""
    known = fields.by_key()
    if key in known:
        return True
    parents = (key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1))
    return any(parent in known and known[parent].free_form for parent in parents)


def is_section(key: str) -> bool:
    return any(f.key == key for f in fields.sections_and_fields() if f.section is not None)


def current_name(key: str) -> str:
    """The key's present name; warns when it had another one."""
    new = RENAMED.get(key)
    if new is None:
        return key
    log.warning("%s is now called %s; the value is used", key, new)
    return new


def is_settled(key: str, value: Any) -> bool:
    """Whether `key` is one of verl's that can be dropped. Raises ConfigError when `value` asks for what is not done."""
    settled = next((SETTLED[k] for k in _with_parents(key) if k in SETTLED), None)
    if settled is None:
        return False
    if settled.values is None:
        log.warning("%s has no effect: %s", key, settled.reason)
    elif value not in settled.values:
        raise ConfigError(problem(key, value, " | ".join(json.dumps(v) for v in settled.values), settled.reason))
    return True


def unknown(key: str, value: Any, groups: Iterable[str] = ()) -> ConfigError:
    """The error for a key that does not exist, naming the nearest that does."""
    if key.split(".")[0] == "hydra":
        fix = "the run folder is trainer.default_local_dir"
        return ConfigError(problem(key, value, "no settings of Hydra itself", fix))
    return ConfigError(f"{key}: no such key; nearest: {nearest(key, groups)} (--help lists the common ones)")


def nearest(key: str, groups: Iterable[str] = ()) -> str:
    """The existing key most like `key`, by the whole dotted name and by its last part."""
    candidates = [*groups] if "." not in key else []
    candidates += [f.key for f in fields.sections_and_fields() if f.section is None]
    leaf = key.rsplit(".", 1)[-1]

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, key, candidate).ratio()
        last = difflib.SequenceMatcher(None, leaf, candidate.rsplit(".", 1)[-1]).ratio()
        return whole + last + (leaf == candidate.rsplit(".", 1)[-1]) / 2

    return max(candidates, key=likeness)


def _with_parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
