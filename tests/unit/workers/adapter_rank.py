"""As fsdp_rank.py, of an actor that trains an adapter."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from sdpo.models.adapters import TEACHER, adapted, adapter_tensors, product
from sdpo.weights.source import WeightSource
from sdpo.workers.actor import Actor, split_over_ranks


def main(folder: str, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    config, batches = torch.load(f"{folder}/input.pt", weights_only=False)
    actor = Actor(config, rank, world, "cpu", total_steps=10)
    lm = actor.student.lm
    start = {name: tensor.clone() for name, tensor in adapter_tensors(lm)}
    for batch in batches:
        report = actor.update(split_over_ranks(batch, config.actor_rollout_ref.actor, world)[rank])
    teacher = [product(layer, TEACHER) for layer in adapted(lm).values()]
    student, weights = dict(adapter_tensors(lm)), dict(WeightSource(lm))
    actor.save(f"{folder}/actor")
    actor.export(f"{folder}/model_best")
    if rank == 0:
        torch.save((start, report, student, teacher, weights), f"{folder}/result.pt")
    dist.destroy_process_group()
    os._exit(0)  # as in fsdp_rank.py


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
