"""Rotary embeddings that depend on the longest row of a batch, made to depend on the run alone.

With rope types `longrope` and `dynamic`, transformers looks at the largest position of each forward pass and scales all
of its rows by that. A row would then score differently alone and beside a longer one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sdpo.algorithms.registry import descriptor_of
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, problem

BY_LENGTH = ("longrope", "dynamic")


def pin_rotary(lm: nn.Module, config: Config) -> None:
    """Scales every pass as one of the run's longest rows. vLLM scales longrope by its own limit, once for all.

    Raises ConfigError when that limit and the longest row are on different sides of where the scaling changes.
    """
    longest, sampled = run_lengths(config)
    for module in lm.modules():
        kinds = getattr(module, "rope_type", None)
        kinds = set(kinds.values()) if isinstance(kinds, dict) else {kinds}
        if not kinds.intersection(BY_LENGTH):
            continue
        if config.actor_rollout_ref.rollout.name == "vllm" and "longrope" in kinds:
            _check_same_side(module, longest, sampled)
        _pin(module, longest)


def run_lengths(config: Config) -> tuple[int, int]:
    """Tokens of the longest row: of all that are scored, and of what the engine is made for."""
    data, parts = config.data, config.actor_rollout_ref
    sampled = parts.rollout.max_model_len or data.max_prompt_length + data.max_response_length
    if not descriptor_of(config).needs_teacher:
        return sampled, sampled
    return max(sampled, parts.actor.self_distillation.max_reprompt_len + data.max_response_length), sampled


def _check_same_side(module: nn.Module, longest: int, sampled: int) -> None:
    rope = module.config.rope_parameters
    layers = [rope] if "rope_type" in rope else list(rope.values())
    for limit in {layer["original_max_position_embeddings"] for layer in layers if layer["rope_type"] == "longrope"}:
        if sampled <= limit < longest:
            allowed = f"above {limit}, where the model's rotary embedding changes: teacher's rows have {longest} tokens"
            fix = f"set it to {longest}, or lower self_distillation.max_reprompt_len"
            raise ConfigError(problem("actor_rollout_ref.rollout.max_model_len", sampled, allowed, fix))


def _pin(module: nn.Module, longest: int) -> None:
    """Every call sees one more position, the last of the longest row, and its cosines and sines are dropped again."""

    def lengthen(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x, positions = args[0] if args else named["x"], args[1] if len(args) > 1 else named["position_ids"]
        last = torch.full_like(positions[..., :1], longest - 1)
        rest = {name: value for name, value in named.items() if name not in ("x", "position_ids")}
        return (x, torch.cat([positions, last], dim=-1), *args[2:]), rest

    def shorten(_: nn.Module, __: Any, found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple(part[..., :-1, :] for part in found)
        return found[..., :-1, :]

    module.register_forward_pre_hook(lengthen, with_kwargs=True)
    module.register_forward_hook(shorten)
