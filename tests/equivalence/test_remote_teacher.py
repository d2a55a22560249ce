"""A teacher in Ray processes: ten steps as with one beside the student, the end of a run that loses it, the resume."""

from __future__ import annotations

import copy
import os
import shutil
import signal
from functools import partial

import pytest
import ray

from sdpo.config.schema import Config
from sdpo.errors import ClusterError
from sdpo.records import MiniBatch, TrainBatch, TrainRow
from sdpo.weights import shared_memory
from sdpo.workers.actor import Actor, split_over_ranks
from sdpo.workers.inline_group import InlineWorkers
from sdpo.workers.placement import pool
from sdpo.workers.ray_group import RayWorkers, started, worker_group
from sdpo.workers.ray_teacher import RayServers, TeacherRayWorker

STEPS, SAVED = 10, 5
SHOWN = ("actor/loss", "actor/grad_norm", "sdpo/divergence", "sdpo/teacher_entropy")


@pytest.fixture
def config(random_model, tmp_path) -> Config:
    folder = shutil.copytree(random_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")  # engines want one
    config = Config()
    config.actor_rollout_ref.model.path, config.data.max_response_length = str(folder), 16
    config.actor_rollout_ref.rollout.name, config.grading.workers = "hf", 1
    config.trainer.n_gpus_per_node = 2
    actor = config.actor_rollout_ref.actor
    actor.optim.lr = actor.optim.eps = 1e-2  # Adam's sign of a rounding error is not what is compared here
    actor.ppo_micro_batch_size_per_gpu = 2
    return config


@pytest.fixture
def batch(random_rows) -> TrainBatch:
    rows = [
        TrainRow.single_turn(str(i), 0, prompt, response, shown, sampler_logprobs=logprobs)
        for i, (prompt, shown, response, logprobs) in enumerate(random_rows)
    ]
    return TrainBatch([MiniBatch(rows)])


def _inline(config: Config, **settings: object) -> Config:
    config = copy.deepcopy(config)
    config.trainer.n_gpus_per_node = 1
    for name, value in settings.items():
        setattr(config.actor_rollout_ref.actor.self_distillation, name, value)
    return config


def _losses(update, count: int) -> list[list[float]]:
    reports = [update() for _ in range(count)]
    return [[report.metrics[name] for name in SHOWN] for report in reports]


def _close(found: list[list[float]], wanted: list[list[float]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_two_sharded_ranks_of_a_remote_teacher(config, batch, tmp_path):
    colocated = InlineWorkers(_inline(config), "cpu", STEPS)
    wanted = _losses(partial(colocated.update, batch), STEPS)
    colocated.close()
    assert len({tuple(losses) for losses in wanted}) == STEPS

    config.actor_rollout_ref.ref.placement = "remote"
    config.actor_rollout_ref.rollout.checkpoint_engine.backend = "gloo"  # as to another machine
    workers = RayWorkers(config, "cpu", STEPS)
    try:
        found = _losses(partial(workers.update, batch), SAVED)
        workers.save(str(tmp_path / "actor"))
        found += _losses(partial(workers.update, batch), STEPS - SAVED)
        _close(found, wanted)

        top_k = _inline(config, distillation_topk=5)  # another group in the same cluster, for an actor in this process
        group = worker_group("top_k", TeacherRayWorker, pool([workers.layout.driver], {"CPU": 1}), top_k, "cpu")
        ray.get(started(group))
        base = shared_memory.new_base()
        shares = split_over_ranks(batch.mini_batches, top_k.actor_rollout_ref.actor, 1)[0]
        beside = Actor(top_k, 0, 1, "cpu", STEPS)
        apart = Actor(top_k, 0, 1, "cpu", STEPS, RayServers(group.workers, base, 0, 1))
        _close(*(_losses(partial(actor.update, shares), STEPS) for actor in (apart, beside)))

        handle = workers._groups["teacher"].workers[1]  # what the other rank then sees is a broken collective
        os.kill(ray.get(handle.__ray_call__.remote(lambda worker: os.getpid())), signal.SIGKILL)
        with pytest.raises(ClusterError, match="the teacher process 1 .*died"):
            workers.update(batch)
        shared_memory.remove_base(base)
    finally:
        workers.close()

    resumed = InlineWorkers(_inline(config), "cpu", STEPS)
    resumed.load(str(tmp_path / "actor"))
    _close(_losses(partial(resumed.update, batch), STEPS - SAVED), wanted[SAVED:])
    resumed.close()
