"""Low-rank adapters (PEFT) in a model: the student trains one, and the teacher may have one of its own on the same
weights.

An adapter is a pair of matrices beside a linear layer, y = W x + s B A x, with W frozen. Which of them counts is a
switch at each layer. Only `active` throws it, and puts it back: a backward pass that computes a layer again (gradient
checkpointing) must do so with the adapter of its forward pass.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from sdpo.algorithms.registry import descriptor_of
from sdpo.config.adapters import MOVING, needs_reference
from sdpo.config.schema import Config
from sdpo.models.adapter_files import PREFIX, adapter_settings, expected_shapes, read_adapter, target_layers
from sdpo.models.shard import local, part_of, whole

STUDENT = "student"
TEACHER = "teacher"  # an average
START = "start"  # what the student started from, where that was an adapter
TEACHER_RANKS = 3  # of the average, in ranks of the student: 0.5 % of the teacher's update is lost (docs/adapters.md)


def add_adapters(lm: PreTrainedModel, config: Config, dtype: torch.dtype) -> None:
    """The student's adapter and those that are not trained, before the model is sharded. From now on only the
    student's is trained. What is frozen is kept in `dtype`, which it is multiplied in; adapters in float32. Every rank
    draws the same numbers."""
    model = config.actor_rollout_ref.model
    settings = adapter_settings(model)
    shapes = expected_shapes(target_layers(lm, settings), settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.trainer.seed)
        inject_adapter_in_model(settings, lm, STUDENT)
        if model.lora_adapter_path is not None:
            _fill(lm, read_adapter(model.lora_adapter_path, shapes))
        for name, others in _others(config, settings):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Already found a `peft_config`", category=UserWarning)
                inject_adapter_in_model(others, lm, name)
            for layer in adapted(lm).values():
                _start_as_student(layer, name)
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(of_adapter(name, STUDENT))
        parameter.data = parameter.data.to(torch.float32 if of_adapter(name) else dtype)
    _switch(adapted(lm).values(), [STUDENT])


def adapted(lm: nn.Module) -> dict[str, LoraLayer]:
    """The layers with adapters, by the names that they have without; empty when weights are trained."""
    return {name: part for name, part in lm.named_modules() if isinstance(part, LoraLayer)}


def of_adapter(name: str, adapter: str = r"\w+") -> bool:
    """Whether a parameter belongs to that adapter; to any, when none is named."""
    return re.search(rf"\.lora_\w+\.{adapter}\.", name) is not None


@contextmanager
def active(lm: nn.Module, adapter: str | None) -> Iterator[None]:
    """Within, that adapter counts; None, or one that the model does not have: the frozen weights alone."""
    layers = adapted(lm).values()
    before = [layer.active_adapters for layer in layers]
    try:
        _switch(layers, [adapter] if adapter else [])
        yield
    finally:
        for layer, names in zip(layers, before, strict=True):
            _switch([layer], names)


def without_adapters(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state by the names that the model has without adapters, their own tensors left out."""
    return {name.replace(".base_layer.", "."): t for name, t in state.items() if not of_adapter(name)}


def product(layer: LoraLayer, adapter: str) -> torch.Tensor:
    """s B A, in float32, of the weight's shape and whole, however it is sharded."""
    a, b = (whole(part[adapter].weight.detach()).float() for part in (layer.lora_A, layer.lora_B))
    found = (b @ a).mul_(layer.scaling[adapter])
    return found.T if _turned(layer) else found


def merged(layer: LoraLayer, adapter: str) -> torch.Tensor:
    """W + s B A (DoRA: times m over its rows' lengths), sharded as the weight is; summed in float32."""
    weight = layer.get_base_layer().weight.detach()
    if adapter in layer.lora_magnitude_vector:
        total = whole(weight).float() + product(layer, adapter)
        rows = total.T if _turned(layer) else total
        rows *= (whole(layer.lora_magnitude_vector[adapter].weight.detach()) / rows.norm(dim=1))[:, None]
        part = part_of(total, weight)
    else:
        part = local(weight).float() + part_of(product(layer, adapter), weight)
    if not isinstance(weight, DTensor):
        return part
    return DTensor.from_local(
        part, weight.device_mesh, weight.placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )


def _turned(layer: LoraLayer) -> bool:
    """Whether the weight is [in, out], as in GPT-2."""
    return bool(getattr(layer, "fan_in_fan_out", False))


def adapter_tensors(lm: nn.Module, adapter: str = STUDENT) -> Iterator[tuple[str, torch.Tensor]]:
    """By the names in PEFT's files, whole; every rank takes part."""
    for name, layer in adapted(lm).items():
        yield f"{PREFIX}{name}.lora_A.weight", whole(layer.lora_A[adapter].weight.detach())
        yield f"{PREFIX}{name}.lora_B.weight", whole(layer.lora_B[adapter].weight.detach())
        if adapter in layer.lora_magnitude_vector:
            yield f"{PREFIX}{name}.lora_magnitude_vector", whole(layer.lora_magnitude_vector[adapter].weight.detach())


def _others(config: Config, student: LoraConfig) -> Iterator[tuple[str, LoraConfig]]:
    """Adapters that are not trained. Without a start adapter the start is the frozen weights, and needs none."""
    distill = config.actor_rollout_ref.actor.self_distillation
    kind = distill.teacher_regularization if descriptor_of(config).needs_teacher else None
    if kind in MOVING:
        rank = distill.teacher_lora_rank or TEACHER_RANKS * student.r
        yield TEACHER, LoraConfig(r=rank, lora_alpha=rank, target_modules=student.target_modules)
    if config.actor_rollout_ref.model.lora_adapter_path is None:
        return
    if kind in ("frozen", "trust-region") or needs_reference(config):
        yield START, replace(student)


@torch.no_grad()
def _start_as_student(layer: LoraLayer, adapter: str) -> None:
    """The same product, in as many more ranks of zeros as the other adapter has."""
    a, b = (part[STUDENT].weight for part in (layer.lora_A, layer.lora_B))
    own_a, own_b = (part[adapter].weight.zero_() for part in (layer.lora_A, layer.lora_B))
    own_a[: len(a)] = a
    own_b[:, : len(a)] = b * (layer.scaling[STUDENT] / layer.scaling[adapter])
    if adapter in layer.lora_magnitude_vector:
        layer.lora_magnitude_vector[adapter].weight.copy_(layer.lora_magnitude_vector[STUDENT].weight)


@torch.no_grad()
def _fill(lm: PreTrainedModel, tensors: dict[str, torch.Tensor]) -> None:
    parameters = dict(lm.named_parameters())
    for name, tensor in tensors.items():  # as in `adapter_tensors`
        parameters[f"{name.removeprefix(PREFIX).removesuffix('.weight')}.{STUDENT}.weight"].copy_(tensor)


def _switch(layers: Iterable[LoraLayer], names: list[str]) -> None:
    """PEFT's own `set_adapter` would also say anew which parameters are trained."""
    for layer in layers:
        layer._active_adapter = list(names)
