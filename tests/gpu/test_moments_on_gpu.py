"""AdamW's moments beside an NVIDIA GPU: in CPU memory between two steps, and the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from sdpo.models.shard import BACKENDS, local
from sdpo.offload.moments import NAMES, Moments, MomentsInCpuMemory, place_moments


@pytest.fixture(params=["plain", "sharded"])
def prepare(request):
    """What is done with a module before it trains: nothing, or FSDP2 with one rank, whose moments are DTensors."""
    if request.param == "plain":
        yield lambda module: module
        return
    assert not dist.is_initialized()
    dist.init_process_group(BACKENDS["cuda"], store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cuda", (1,))
    yield lambda module: fully_shard(module, mesh=mesh)
    dist.destroy_process_group()


def modules(prepare) -> list[nn.Module]:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    return [prepare(module) for module in (copy.deepcopy(first), first)]


def adamw(module: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True)


def step(module: nn.Module, moments: Moments, seed: int) -> None:
    inputs = torch.randn(64, 512, generator=torch.Generator().manual_seed(seed)).cuda()
    module(inputs).square().mean().backward()
    moments.onload()
    assert all(tensor.is_cuda for tensor in of(moments))
    moments.optimizer.step()
    moments.offload()
    moments.optimizer.zero_grad()


def of(moments: Moments) -> list[torch.Tensor]:
    return [local(state[name]) for state in moments.optimizer.state.values() for name in NAMES]


def assert_equal_bits(moments: Moments, others: Moments) -> None:
    pairs = zip(moments.optimizer.state.items(), others.optimizer.state.items(), strict=True)
    for (p, mine), (q, theirs) in pairs:
        assert torch.equal(local(p), local(q))
        assert mine.keys() == theirs.keys() == {"step", *NAMES}
        for name in mine:
            assert torch.equal(local(mine[name]).cpu(), local(theirs[name]).cpu()), name


def test_moments_in_cpu_memory_are_the_same_moments(prepare):
    made = modules(prepare)
    stays, offloaded = (
        place_moments(adamw(module), offload, "cuda", "nowhere")
        for module, offload in zip(made, (False, True), strict=True)
    )
    assert isinstance(offloaded, MomentsInCpuMemory)
    for seed in range(3):
        for module, moments in zip(made, (stays, offloaded), strict=True):
            step(module, moments, seed)
        assert all(tensor.is_cuda for tensor in of(stays))
        assert len(of(offloaded)) == 8 and all(tensor.is_pinned() for tensor in of(offloaded))
        assert_equal_bits(offloaded, stays)


def test_the_gpu_has_the_memory_between_the_steps(prepare):
    module = modules(prepare)[0]
    moments = place_moments(adamw(module), True, "cuda", "nowhere")
    step(module, moments, 0)
    away = torch.cuda.memory_allocated()
    moments.onload()
    assert torch.cuda.memory_allocated() - away >= 2 * sum(local(p).nbytes for p in module.parameters())
    moments.offload()
    assert torch.cuda.memory_allocated() == away


def test_what_a_checkpoint_brings_is_put_away_too(prepare):
    made = modules(prepare)
    first, second = (place_moments(adamw(module), True, "cuda", "nowhere") for module in made)
    step(made[0], first, 0)
    set_optimizer_state_dict(made[1], second.optimizer, get_optimizer_state_dict(made[0], first.optimizer))
    second.offload()
    assert all(tensor.is_pinned() for tensor in of(second))
    for mine, theirs in zip(of(second), of(first), strict=True):
        assert torch.equal(mine, theirs)
