"""From the configuration to an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sdpo.config.adapters import sends_adapter
from sdpo.config.schema import Config, ModelConfig
from sdpo.errors import ConfigError, problem
from sdpo.models.adapter_files import adapter_settings
from sdpo.models.load import load_policy, load_tokenizer, resolve_model_path
from sdpo.models.shard import AUTO, DTYPES
from sdpo.rollout.engine import RolloutEngine
from sdpo.rollout.vllm_settings import lora_arguments
from sdpo.tokens.stop import stop_token_ids


def build_engine(config: Config, device: str, module: nn.Module | None = None) -> RolloutEngine:
    """The engine that `actor_rollout_ref.rollout.name` names: vllm or hf.

    `device`: "cpu" or "cuda". `module`: the student, when the hf engine shares the trainer's weights; without it that
    engine loads its own copy. Raises ModelError when the model cannot be loaded.
    """
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    path = resolve_model_path(model.path, model.revision)
    stop_ids = stop_token_ids(path, load_tokenizer(model))
    max_prompt, max_response = config.data.max_prompt_length, config.data.max_response_length
    if rollout.name == "vllm":
        adapter = _adapter(model) if sends_adapter(config) else None
        options = _vllm_options(model) | (lora_arguments(adapter["r"]) if adapter else {})
        arguments = path, rollout, max_prompt, max_response, device, stop_ids, options, adapter
        if device.startswith("cuda"):
            from sdpo.rollout.vllm_async import AsyncVllmEngine

            return AsyncVllmEngine(*arguments)
        from sdpo.rollout.vllm_engine import VllmEngine

        return VllmEngine(*arguments)
    if rollout.name == "hf":
        from sdpo.rollout.hf_generate import HfEngine

        if module is None:
            module = load_policy(config, engine_dtype(config, device)).to(device)
        return HfEngine(module, stop_ids, rollout.max_model_len or max_prompt + max_response, rollout.max_num_seqs)
    raise ConfigError(problem("actor_rollout_ref.rollout.name", rollout.name, "vllm or hf"))


def _adapter(model: ModelConfig) -> dict[str, Any]:
    """Settings of the adapter that the engine gets instead of weights."""
    settings = adapter_settings(model)
    return {
        "peft_type": "LORA",
        "r": settings.r,
        "lora_alpha": settings.lora_alpha,
        "use_rslora": settings.use_rslora,
        "target_modules": "all-linear",  # what the file holds counts
    }


def _vllm_options(model: ModelConfig) -> dict[str, Any]:
    options: dict[str, Any] = {"trust_remote_code": model.trust_remote_code}
    if model.override_config:
        options["hf_overrides"] = dict(model.override_config)
    return options


def engine_dtype(config: Config, device: str) -> torch.dtype:
    return DTYPES.get(config.actor_rollout_ref.rollout.dtype, AUTO[device])
