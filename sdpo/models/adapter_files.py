"""Adapters in files (PEFT's format), and what a model's structure says to an adapter before weights are loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from sdpo.algorithms.registry import descriptor_of
from sdpo.config.adapters import (
    DISTILL,
    FILES,
    LARGEST_VLLM_RANK,
    MODEL,
    MOVING,
    ROLLOUT_LORA,
    trains_adapter,
)
from sdpo.config.schema import Config, ModelConfig
from sdpo.errors import ConfigError, first_line, problem
from sdpo.models.file_names import digest_of
from sdpo.models.load import load_skeleton, resolve_model_path

PATH, TARGETS = f"{MODEL}.lora_adapter_path", f"{MODEL}.target_modules"
PREFIX = "base_model.model."  # of every name in such a file
# What is taken over from a folder's settings; what only describes it; all else must be as PEFT has it by default.
CARRIED: tuple[str, ...] = ("r", "lora_alpha", "target_modules", "exclude_modules", "lora_dropout")
CARRIED += ("use_rslora", "use_dora", "fan_in_fan_out", "layers_to_transform", "layers_pattern")
ABOUT: tuple[str, ...] = ("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode")
ABOUT += ("auto_mapping", "peft_version", "init_lora_weights")
KINDS = {"r": int, "lora_alpha": int | float, "lora_dropout": int | float, "base_model_name_or_path": str | None}
BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")  # others take their part out of the base

Shapes = dict[str, tuple[int, ...]]  # by the names in files


def adapter_settings(model: ModelConfig) -> LoraConfig:
    """Of the student's adapter: those of the folder that it starts from, or those of the configuration.

    Raises ConfigError for a folder that cannot be read, has what is not carried on, or contradicts the configuration.
    """
    if model.lora_adapter_path is None:
        settings = LoraConfig(r=model.lora_rank, lora_alpha=model.lora_alpha, target_modules=model.target_modules)
        settings.use_rslora, settings.use_dora = model.use_rslora, model.use_dora
    else:
        said = _read_settings(Path(model.lora_adapter_path))
        try:
            settings = LoraConfig(**{name: said[name] for name in CARRIED if name in said})
        except ValueError as error:
            fix = first_line(error)
            raise ConfigError(problem(PATH, model.lora_adapter_path, "settings that PEFT takes", fix)) from error
        for name, own in (("lora_rank", "r"), ("use_rslora", "use_rslora"), ("use_dora", "use_dora")):
            asked, found = getattr(model, name), getattr(settings, own)
            if asked and asked != found:
                fix = f"{model.lora_adapter_path} has {own}={found}"
                raise ConfigError(problem(f"{MODEL}.{name}", asked, f"{found} with that {PATH}", fix))
    settings.task_type = "CAUSAL_LM"
    settings.lora_dropout = model.lora_dropout or settings.lora_dropout
    return settings


def check_adapter(config: Config) -> None:
    """Raises ConfigError for layers that the model does not have, a rank that none of its matrices has, and an adapter
    that was made for another model. Loads no weights."""
    model, distill = config.actor_rollout_ref.model, config.actor_rollout_ref.actor.self_distillation
    if not trains_adapter(model):
        return
    settings = adapter_settings(model)
    if settings.use_dora and descriptor_of(config).needs_teacher and distill.teacher_regularization in MOVING:
        allowed = f"false with teacher_regularization={distill.teacher_regularization}"
        fix = "an average of DoRA's weights has no low rank: use frozen, trust-region or live"
        raise ConfigError(problem(f"{MODEL}.use_dora", True, allowed, fix))
    if config.actor_rollout_ref.rollout.lora == "adapter":
        if settings.use_dora:
            raise ConfigError(problem(ROLLOUT_LORA, "adapter", "merged with DoRA", "vLLM has no DoRA"))
        if settings.r > LARGEST_VLLM_RANK:
            allowed = f"at most {LARGEST_VLLM_RANK} with {ROLLOUT_LORA}=adapter"
            raise ConfigError(problem(f"{MODEL}.lora_rank", settings.r, allowed, "set that to merged"))
    layers = target_layers(load_skeleton(model), settings)
    largest = max(min(features(layer)) for layer in layers.values())
    if not 1 <= settings.r <= largest:
        fix = "beyond it a matrix has no more directions"
        raise ConfigError(problem(f"{MODEL}.lora_rank", settings.r, f"1 to {largest} with {model.path}", fix))
    if distill.teacher_lora_rank is not None and distill.teacher_lora_rank < settings.r:
        allowed = f"at least {settings.r}, the student's"
        raise ConfigError(problem(f"{DISTILL}.teacher_lora_rank", distill.teacher_lora_rank, allowed))
    if model.lora_adapter_path is not None:
        folder = Path(model.lora_adapter_path)
        _check_base(_read_settings(folder), model)
        _check_shapes(folder, expected_shapes(layers, settings))


def target_layers(lm: PreTrainedModel, settings: LoraConfig) -> dict[str, nn.Module]:
    """The linear layers of `lm` (without adapters) that get one, by name; `settings` name them one by one from then on.

    Raises ConfigError for names that are no linear layer, or the output head: losses multiply with its weight alone."""
    head = lm.get_output_embeddings()
    linear = {name: part for name, part in lm.named_modules() if isinstance(part, nn.Linear | Conv1D)}
    names = ", ".join(sorted({name.rpartition(".")[2] for name, part in linear.items() if part is not head}))
    if settings.target_modules in ("all-linear", ["all-linear"], {"all-linear"}):
        found = {name: part for name, part in linear.items() if part is not head}
    else:
        targets = settings.target_modules
        try:
            found = {name: part for name, part in linear.items() if check_target_module_exists(settings, name)}
        except (TypeError, re.error) as error:
            allowed = "all-linear, a list of names, or a regular expression"
            raise ConfigError(problem(TARGETS, targets, allowed, first_line(error))) from error
        for target in {targets} if isinstance(targets, str) else set(targets or ()):
            one = LoraConfig(target_modules=target if isinstance(targets, str) else [target])
            if not any(check_target_module_exists(one, name) for name in linear):
                fix = "text is a regular expression of whole names; one name is [NAME]" if target is targets else ""
                raise ConfigError(problem(TARGETS, target, f"all-linear, or of this model's: {names}", fix))
    if not found:
        raise ConfigError(problem(TARGETS, settings.target_modules, f"all-linear, or of this model's: {names}"))
    if any(part is head for part in found.values()):
        fix = "losses and engines multiply with the head's own weight"
        raise ConfigError(problem(TARGETS, "the output head", names, fix))
    settings.target_modules = _shortest(found, linear)
    settings.exclude_modules = settings.layers_to_transform = settings.layers_pattern = None
    return found


def _shortest(found: Mapping[str, nn.Module], linear: Mapping[str, nn.Module]) -> list[str]:
    """Last parts of the names, where these say it all."""
    last = {name.rpartition(".")[2] for name in found}
    all_of_them = {name for name in linear if name.rpartition(".")[2] in last}
    return sorted(last if all_of_them == found.keys() else found)


def features(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs."""
    shape = layer.weight.shape
    return (shape[0], shape[1]) if isinstance(layer, Conv1D) else (shape[1], shape[0])


def expected_shapes(layers: Mapping[str, nn.Module], settings: LoraConfig) -> Shapes:
    shapes: Shapes = {}
    for name, layer in layers.items():
        inputs, outputs = features(layer)
        shapes[f"{PREFIX}{name}.lora_A.weight"] = (settings.r, inputs)
        shapes[f"{PREFIX}{name}.lora_B.weight"] = (outputs, settings.r)
        if settings.use_dora:
            shapes[f"{PREFIX}{name}.lora_magnitude_vector"] = (outputs,)
    return shapes


def read_adapter(folder: str, expected: Shapes) -> dict[str, torch.Tensor]:
    """By the names in the file, all of them and no others. Raises ConfigError."""
    _check_shapes(Path(folder), expected)
    with safe_open(Path(folder) / FILES[1], framework="pt") as file:
        return {name: file.get_tensor(name) for name in expected}


def _check_shapes(folder: Path, expected: Shapes) -> None:
    try:
        with safe_open(folder / FILES[1], framework="pt") as file:
            found: Shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(problem(PATH, str(folder), "a readable folder", first_line(error))) from error
    missing, unknown = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or unknown:
        sets = [
            f"{len(each)} {word}, first {each[0]}"
            for word, each in (("missing", missing), ("unknown", unknown))
            if each
        ]
        allowed = f"an adapter with the {len(expected)} tensors that its settings and {MODEL}.path ask for"
        raise ConfigError(problem(PATH, str(folder), allowed, "; ".join(sets)))
    wrong = next((name for name in expected if found[name] != expected[name]), None)
    if wrong:
        fix = f"{wrong} is {found[wrong]} there, {expected[wrong]} for this model"
        raise ConfigError(problem(PATH, str(folder), f"an adapter for {MODEL}.path", fix))


def _read_settings(folder: Path) -> dict[str, Any]:
    """Raises ConfigError for what is no LoRA, or more than one."""
    try:
        said = json.loads((folder / FILES[0]).read_text(encoding="utf-8"))
        kind = said.get("peft_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(problem(PATH, str(folder), f"a readable {FILES[0]}", first_line(error))) from error
    if kind != "LORA":
        raise ConfigError(problem(PATH, kind, "LORA as peft_type"))
    if (beginning := said.get("init_lora_weights")) not in BEGINNINGS:
        allowed = "one that leaves the base's weights as they are"
        fix = "save it again with PEFT's path_initial_model_for_weight_conversion"
        raise ConfigError(problem(f"{PATH}: init_lora_weights", beginning, allowed, fix))
    for name, kind in KINDS.items():
        if name in said and not isinstance(said[name], kind):
            allowed = "text, or null" if name.startswith("base") else "a number"
            raise ConfigError(problem(f"{PATH}: {name}", said[name], allowed))
    default = LoraConfig().to_dict()
    for name, value in said.items():
        if name not in (*CARRIED, *ABOUT) and value and value != default.get(name):
            fix = "it would be lost when weights are published or averaged"
            raise ConfigError(problem(f"{PATH}: {name}", value, str(default.get(name)), fix))
    return said


def _check_base(said: Mapping[str, Any], model: ModelConfig) -> None:
    """An adapter says what it was made for: a hub id, or a folder, which may be elsewhere by now."""
    base, revision = said.get("base_model_name_or_path"), said.get("revision")
    if not base:
        return
    own = Path(resolve_model_path(model.path, model.revision))
    if base == model.path:
        if revision not in (None, model.revision, own.name):
            fix = f"the adapter was made for revision {revision}"
            raise ConfigError(problem(f"{MODEL}.revision", model.revision, revision, fix))
        return
    there = Path(base)
    both_on_the_hub = _is_hub_id(base) and _is_hub_id(model.path)
    if both_on_the_hub or (there.is_dir() and there.resolve() != own.resolve() and digest_of(there) != digest_of(own)):
        raise ConfigError(problem(f"{MODEL}.path", model.path, f"{base}, which the adapter was made for"))


def _is_hub_id(path: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", path) is not None and not Path(path).exists()
