"""All workers as Ray processes, through verl's worker groups."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import ray
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup

from sdpo.config.schema import Config
from sdpo.records import Group, MiniBatch, StepReport, TrainBatch
from sdpo.teacher.remote import is_remote
from sdpo.weights import shared_memory
from sdpo.workers.actor import RankShare, split_over_ranks
from sdpo.workers.group import Versions
from sdpo.workers.placement import rollout_pool, start_ray, teacher_pool, training_pool, worker_env
from sdpo.workers.ray_errors import call_remote
from sdpo.workers.ray_teacher import TeacherRayWorker
from sdpo.workers.ray_workers import ActorRayWorker, RolloutRayWorker, grader_processes
from sdpo.workers.rollout import RenderedPrompt, SamplingPlan


class RayWorkers:
    def __init__(self, config: Config, device: str, total_steps: int) -> None:
        start_ray(config)
        self.config = config
        self.policy_version = 0
        self._versions = Versions(config.actor_rollout_ref.rollout.max_staleness)
        self._weights_base = shared_memory.new_base()
        self._graders = grader_processes(config, worker_env())
        pool = training_pool(config, device)
        teacher: tuple[list[ray.actor.ActorHandle], str] | None = None
        if is_remote(config):
            self._teachers = _group(TeacherRayWorker, teacher_pool(config, device), device, "teacher", config, device)
            teacher = self._teachers.workers, shared_memory.new_base()
        self._teacher_base = teacher[1] if teacher else None
        self._actors = _group(ActorRayWorker, pool, device, "actor", config, device, total_steps, teacher)
        self._rollouts = _group(
            RolloutRayWorker, rollout_pool(config, device, pool), device, "rollout", config, device, self._graders
        )
        if teacher:
            self._call(self._teachers, self._teachers.ready)
        self._call(self._actors, self._actors.ready)
        self._call(self._rollouts, self._rollouts.ready)
        self._padded = self._call(self._actors, self._actors.prefix_sharing_unsupported)[0] is not None

    def submit(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[ray.ObjectRef]:
        engines = self._rollouts.world_size
        shares = [jobs[rank::engines] for rank in range(engines)]
        return self._rollouts.generate(shares, [plan] * engines)

    def collect(self, ticket: list[ray.ObjectRef]) -> list[Group]:
        answers = self._call(self._rollouts, lambda: ray.get(ticket))
        groups = [answers[i % len(answers)][i // len(answers)] for i in range(sum(map(len, answers)))]
        return self._versions.check(groups, self.policy_version)

    def reference_kl(self, rows: MiniBatch) -> dict[int, float]:
        shares = self._shares([rows])
        found: dict[int, float] = {}
        for part in self._call(self._actors, lambda: self._actors.reference_kl(shares)):
            for number, kl in part.items():  # rows of one sample may be on several ranks
                found[number] = found.get(number, 0.0) + kl
        return found

    def _shares(self, mini_batches: list[MiniBatch]) -> list[list[RankShare]]:
        actor, ranks = self.config.actor_rollout_ref.actor, self._actors.world_size
        return split_over_ranks(mini_batches, actor, ranks, self._padded)

    def update(self, batch: TrainBatch) -> StepReport:
        shares = self._shares(batch.mini_batches)
        report = self._call(self._actors, lambda: self._actors.update(shares))[0]
        self._versions.updated(self.policy_version)
        self.policy_version = report.policy_version
        report.metrics.update(self._grading_metrics())
        return report

    def _grading_metrics(self) -> dict[str, float]:
        """Sums over the engines and over the grader processes that are alive."""
        answers = self._call(self._rollouts, self._rollouts.grading_metrics)
        for grader in self._graders:
            with contextlib.suppress(ray.exceptions.RayActorError):
                answers.append(ray.get(grader.metrics.remote()))
        names = {name for answer in answers for name in answer}
        return {name: sum(answer.get(name, 0.0) for answer in answers) for name in sorted(names)}

    def sync_weights(self) -> None:
        folder = self._call(self._actors, lambda: self._actors.publish(self._weights_base))[0]
        self._call(self._rollouts, lambda: self._rollouts.load_weights(folder, self.policy_version))

    def save(self, folder: str) -> None:
        self._call(self._actors, lambda: self._actors.save(folder))

    def load(self, folder: str) -> None:
        self.policy_version = self._call(self._actors, lambda: self._actors.load(folder))[0]

    def export(self, folder: str) -> None:
        self._call(self._actors, lambda: self._actors.export(folder))

    @staticmethod
    def _call(group: RayWorkerGroup, work: Callable[[], Any]) -> Any:
        return call_remote(group.name_prefix.rstrip("_"), work, group.workers)

    def close(self) -> None:
        for base in filter(None, (self._weights_base, self._teacher_base)):
            shared_memory.remove_base(base)
        ray.shutdown()


def _group(worker: type, pool, device: str, name: str, *args) -> RayWorkerGroup:
    remote = RayClassWithInitArgs(ray.remote(worker), *args)
    return RayWorkerGroup(
        pool, remote, name_prefix=f"{name}_", device_name=device, use_gpu=device == "cuda", worker_env=worker_env()
    )
