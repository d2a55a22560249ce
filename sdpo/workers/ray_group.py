"""All workers as Ray processes, through verl's worker groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from sdpo.config.adapters import sends_adapter
from sdpo.config.schema import Config
from sdpo.errors import ConfigError, problem
from sdpo.records import Group, MiniBatch, StepReport, TrainBatch
from sdpo.weights import shared_memory
from sdpo.workers.actor import RankShare, split_over_ranks
from sdpo.workers.actor_state import TEACHER
from sdpo.workers.group import Versions
from sdpo.workers.layout import Node, Wanted
from sdpo.workers.nodes import check_nodes, with_whole_paths
from sdpo.workers.placement import find_places, inside, pool, reserve, start_ray, worker_env
from sdpo.workers.ray_errors import Members, call_remote
from sdpo.workers.ray_teacher import TeacherRayWorker
from sdpo.workers.ray_workers import ActorRayWorker, RolloutRayWorker, grader_processes
from sdpo.workers.rollout import RenderedPrompt, SamplingPlan
from sdpo.workers.shared_files import check_folder, check_shards


class RayWorkers:
    def __init__(self, config: Config, device: str, total_steps: int) -> None:
        self._bases: list[str] = []  # of shared memory
        start_ray(config)
        try:
            self._make(with_whole_paths(config), device, total_steps)
        except BaseException:  # also of a signal: nobody else has these workers yet
            self.close()
            raise

    def _make(self, config: Config, device: str, total_steps: int) -> None:
        self.config = config
        self.policy_version = 0
        self._versions = Versions(config.actor_rollout_ref.rollout.max_staleness)
        self.layout = layout = find_places(config, device)
        self.machines = str(layout) if any(node is not layout.driver for node in layout.nodes()) else ""
        check_nodes(config, layout)
        wanted, env = Wanted.by(config, device), worker_env()
        places = [
            inside(group, number)
            for group in reserve(layout.graders, {"CPU": 1})
            for number in range(group.bundle_count)
        ]
        self._graders = grader_processes(config, env, places)
        self._groups: dict[str, RayWorkerGroup] = {}
        teacher = None
        if layout.teachers:
            group = self._group("teacher", TeacherRayWorker, pool(layout.teachers, wanted.teacher), config, device)
            teacher = group.workers, self._shared_memory(layout.actors[:1] + layout.teachers)
        actors = pool(layout.actors, wanted.actor)
        self._actors = self._group("actor", ActorRayWorker, actors, config, device, total_steps, teacher)
        engines = actors if device == "cuda" else pool(layout.engines, {"CPU": 1}, apart=True)
        mates = [layout.engines.count(node) for node in layout.engines]
        self._rollouts = self._group("rollout", RolloutRayWorker, engines, config, device, self._graders, mates)
        self._base = self._shared_memory(layout.actors[:1] + layout.engines)
        self._start(device)
        self._padded = self._call(self._actors.prefix_sharing_unsupported)[0] is not None

    def _group(self, name: str, worker: type, pool: RayResourcePool, *args: Any) -> RayWorkerGroup:
        self._groups[name] = worker_group(name, worker, pool, *args)
        return self._groups[name]

    def _start(self, device: str) -> None:
        """All at once; but on a GPU an engine counts the memory that is free when it starts: the actor comes first."""
        rest = {name: group for name, group in self._groups.items() if name != "rollout"}
        if device == "cuda":
            self._call(lambda: ray.get([ref for group in rest.values() for ref in started(group)]))
            self._call(lambda: ray.get(started(self._rollouts)))
            return
        waiting = started(self._rollouts)
        self._call(lambda: ray.get([*waiting, *(ref for group in rest.values() for ref in started(group))]))

    def _shared_memory(self, nodes: list[Node]) -> str:
        """A base for weights that these hand on; "" where they go over the network."""
        backend, here = self.config.actor_rollout_ref.rollout.checkpoint_engine.backend, self.layout.driver
        elsewhere = sorted({node.address for node in nodes if node.id != here.id})
        if backend == "gloo" or (backend == "auto" and elsewhere):
            return ""
        if elsewhere:
            field = "actor_rollout_ref.rollout.checkpoint_engine.backend"
            fix = f"{', '.join(elsewhere)} cannot read the memory of {here.address}"
            raise ConfigError(problem(field, backend, "auto | gloo with weights for other machines", fix))
        self._bases.append(shared_memory.new_base())
        return self._bases[-1]

    def submit(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[ray.ObjectRef]:
        engines = self._rollouts.world_size
        shares = [jobs[rank::engines] for rank in range(engines)]
        return self._rollouts.generate(shares, [plan] * engines)

    def collect(self, ticket: list[ray.ObjectRef]) -> list[Group]:
        answers = self._call(lambda: ray.get(ticket))
        groups = [answers[i % len(answers)][i // len(answers)] for i in range(sum(map(len, answers)))]
        return self._versions.check(groups, self.policy_version)

    def reference_kl(self, rows: MiniBatch) -> dict[int, float]:
        shares = self._shares([rows])
        found: dict[int, float] = {}
        for part in self._call(lambda: self._actors.reference_kl(shares)):
            for number, kl in part.items():  # rows of one sample may be on several ranks
                found[number] = found.get(number, 0.0) + kl
        return found

    def _shares(self, mini_batches: list[MiniBatch]) -> list[list[RankShare]]:
        actor, ranks = self.config.actor_rollout_ref.actor, self._actors.world_size
        return split_over_ranks(mini_batches, actor, ranks, self._padded)

    def update(self, batch: TrainBatch) -> StepReport:
        shares = self._shares(batch.mini_batches)
        report = self._call(lambda: self._actors.update(shares))[0]
        self._versions.updated(self.policy_version)
        self.policy_version = report.policy_version
        report.metrics.update(self._grading_metrics())
        return report

    def _grading_metrics(self) -> dict[str, float]:
        """Sums over the engines and over the grader processes that are alive."""
        answers = self._call(self._rollouts.grading_metrics)
        for grader in self._graders:
            with contextlib.suppress(ray.exceptions.RayActorError):
                answers.append(ray.get(grader.metrics.remote()))
        names = {name for answer in answers for name in answer}
        return {name: sum(answer.get(name, 0.0) for answer in answers) for name in sorted(names)}

    def sync_weights(self) -> None:
        """Over the network both sides work at the same time; in shared memory one after the other."""
        version = self.policy_version
        if self._base:
            place = self._call(lambda: self._actors.publish(self._base))[0]
            self._call(lambda: self._rollouts.load_weights(place, version))
            return
        receivers = self._rollouts.world_size
        if not sends_adapter(self.config):  # an adapter is taken once for all workers of an engine
            receivers *= self.config.actor_rollout_ref.rollout.tensor_model_parallel_size
        self._call(self._rollouts.drawn)  # however long that takes: the time limit is one of the network
        base = self._call(lambda: ray.get(self._actors.workers[0].open_transfer.remote(receivers)))
        taken = self._rollouts.execute_all_async("load_weights", base, version)
        sent = self._actors.execute_all_async("publish", base)
        self._call(lambda: ray.get([*sent, *taken]))

    def save(self, folder: str) -> None:
        folder = os.path.abspath(folder)
        self._call(lambda: self._actors.save(folder))
        parts = [folder, *([os.path.join(folder, TEACHER)] if self.layout.teachers else [])]
        check_shards(parts, self.config.trainer.file_wait_s)

    def load(self, folder: str) -> None:
        self.policy_version = self._call(lambda: self._actors.load(os.path.abspath(folder)))[0]

    def export(self, folder: str) -> None:
        self._call(lambda: self._actors.export(os.path.abspath(folder)))
        check_folder(folder, self.config.trainer.file_wait_s)

    def _call(self, work: Callable[[], Any]) -> Any:
        places = {"actor": self.layout.actors, "teacher": self.layout.teachers, "rollout": self.layout.engines}
        members = [
            Members(name, group.workers, [node.address for node in places[name]])
            for name, group in self._groups.items()
        ]
        return call_remote(work, *members)

    def close(self) -> None:
        for base in self._bases:
            shared_memory.remove_base(base)
        ray.shutdown()


def worker_group(name: str, worker: type, pool: RayResourcePool, *args: Any) -> RayWorkerGroup:
    """Its processes come up; none has been told to start."""
    remote = RayClassWithInitArgs(ray.remote(worker), *args)
    return RayWorkerGroup(
        pool,
        remote,
        name_prefix=f"{name}_",
        device_name="cuda" if pool.use_gpu else "cpu",
        use_gpu=pool.use_gpu,
        worker_env=worker_env(),
        master_addr="",  # ranks meet at the first one's store, see `RayRank`: verl's way costs a process to find a port
        master_port="0",
    )


def started(group: RayWorkerGroup) -> list[ray.ObjectRef]:
    """Has the processes build what they are for; those that compute together meet."""
    together = group.world_size > 1 and not group.name_prefix.startswith("rollout")
    address = ray.get(group.workers[0].listen.remote()) if together else ""
    return group.execute_all_async("start", address)
