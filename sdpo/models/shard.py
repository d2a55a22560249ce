"""FSDP2: sharding, parts of full tensors, and the global gradient norm."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from sdpo.config.schema import FsdpConfig
from sdpo.models.forward import PolicyModule

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
AUTO = {"cpu": torch.float32, "cuda": torch.bfloat16}  # `rollout.dtype=auto`
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # gloo too: with offload the gradients are on the CPU


def shard(
    module: PolicyModule, config: FsdpConfig, world_size: int, device: str, offload: bool = False
) -> PolicyModule:
    """Shards decoder layers, then the rest as the root group. Gradients are summed over ranks, not averaged: the losses
    already carry global denominators.

    offload: weights stay in CPU memory, whatever the configuration says, and come to the device layer by layer.
    One rank in float32 and without offload is left as it is; otherwise FSDP2 does for it what it does for many.
    """
    offload = offload or config.offload_policy
    if world_size == 1 and config.param_dtype == "float32" and not offload:
        return module.to(device)
    if not dist.is_initialized():  # one rank: nobody else has made a group
        dist.init_process_group(BACKENDS[device], store=dist.HashStore(), rank=0, world_size=1)
    size = config.fsdp_size if 0 < config.fsdp_size < world_size else world_size
    mesh = init_device_mesh(device, (world_size // size, size), mesh_dim_names=("replicate", "shard"))
    options = {
        "mesh": mesh if size < world_size else mesh["shard"],
        "mp_policy": MixedPrecisionPolicy(DTYPES[config.param_dtype], DTYPES[config.reduce_dtype]),
        "offload_policy": CPUOffloadPolicy(pin_memory=device != "cpu") if offload else OffloadPolicy(),
    }
    layers = decoder_layers(module)  # now: sharding renames their classes
    for layer in layers:
        fully_shard(layer, reshard_after_forward=config.reshard_after_forward, **options)
    fully_shard(module, reshard_after_forward=False, **options)  # the loss reads the head after the forward pass
    for part in [*layers, module]:
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo has no pre-scaled sum
    return module


def decoder_layers(module: PolicyModule) -> list[nn.Module]:
    names = set(getattr(module.lm, "_no_split_modules", None) or ())
    return [m for m in module.lm.modules() if type(m).__name__ in names]


def clip_gradients(module: nn.Module, max_norm: float) -> torch.Tensor:
    """Scales gradients to at most `max_norm` (0: only measures). Returns the norm before, over all ranks, a scalar."""
    norm = nn.utils.get_total_norm([p.grad for p in module.parameters() if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm > 0 and torch.isfinite(norm):
        nn.utils.clip_grads_with_norm_(module.parameters(), max_norm, norm)
    return norm


def reshard(module: nn.Module) -> None:
    """Frees gathered weights that no backward pass will free: those of a module that is only ever run forward."""
    if isinstance(module, FSDPModule):
        module.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's shard of a distributed tensor, or the tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a distributed tensor, on every rank. Offloaded shards are gathered where the others are."""
    if isinstance(tensor, DTensor):
        return tensor.to(tensor.device_mesh.device_type).full_tensor()
    return tensor


def part_of(full: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a full tensor, where it is split as `like` is."""
    if not isinstance(like, DTensor):
        return full
    return local(distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=None))
