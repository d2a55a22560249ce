"""One training rank in a process of its own: `fsdp_rank.py FOLDER RANK WORLD`; input and output are files in FOLDER."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from sdpo.weights.source import WeightSource
from sdpo.workers.actor import Actor, split_over_ranks


def main(folder: str, rank: int, world: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    config, batches = torch.load(f"{folder}/input.pt", weights_only=False)
    actor = Actor(config, rank, world, "cpu", total_steps=10)
    for batch in batches:
        report = actor.update(split_over_ranks(batch, config.actor_rollout_ref.actor, world)[rank])
    state, teacher = dict(WeightSource(actor.student.lm)), dict(WeightSource(actor.teacher.module.lm))
    actor.save(f"{folder}/actor")
    actor.export(f"{folder}/model_best")
    actor.publish(f"{folder}/sent")
    if rank == 0:
        torch.save((report, state, teacher), f"{folder}/result.pt")
    dist.destroy_process_group()
    # FSDP2 keeps references to the group, so gloo's threads are not joined yet. One that still holds a tensor when the
    # interpreter is taken down asks for its lock, which can end the process with SIGABRT: leave it up.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
