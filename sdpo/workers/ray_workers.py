"""The processes of a Ray run: verl workers around the plain classes."""

from __future__ import annotations

import os
from collections.abc import Callable

import ray
import torch
import torch.distributed as dist
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

import sdpo.workers.cpu_platform  # noqa: F401  (before verl's single controller)
from sdpo.config.schema import Config
from sdpo.grading.registry import build_grader
from sdpo.records import Grade, Group, Prompt, StepReport
from sdpo.workers.actor import Actor, RankShare
from sdpo.workers.grader import grade_or_infra_error
from sdpo.workers.rollout import Job, RolloutWorker, SamplingPlan


class ActorRayWorker(Worker):
    """One training rank."""

    def __init__(self, config: Config, device: str, total_optimizer_steps: int) -> None:
        super().__init__()
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if self.world_size > 1:
            dist.init_process_group("nccl" if device == "cuda" else "gloo", rank=self.rank, world_size=self.world_size)
        self._actor = Actor(config, self.rank, self.world_size, device, total_optimizer_steps)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> bool:
        return True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def why_padded(self) -> str | None:
        return self._actor.why_padded

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def update(self, shares: list[RankShare]) -> StepReport:
        return self._actor.update(shares)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def publish(self, base: str) -> str:
        return self._actor.publish(base)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, folder: str) -> None:
        self._actor.save(folder)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load(self, folder: str) -> int:
        self._actor.load(folder)
        return self._actor.policy_version

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def export(self, folder: str) -> None:
        self._actor.export(folder)


class RolloutRayWorker(Worker):
    """One inference engine."""

    def __init__(self, config: Config, device: str, graders: list[ray.actor.ActorHandle]) -> None:
        super().__init__()
        self._rollout = RolloutWorker(config, device, RayGraderPool(graders, first=self.rank))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> bool:
        return True

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def generate(self, jobs: list[Job], plan: SamplingPlan) -> list[Group]:
        return self._rollout.generate(jobs, plan)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self, folder: str, version: int) -> None:
        self._rollout.load_weights(folder, version)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        self._rollout.close()


class GraderProcess:
    """One grader with its own sandbox server. Ray restarts it when it dies and repeats what it was doing."""

    def __init__(self, config: Config) -> None:
        self._grader = build_grader(config)

    def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        return grade_or_infra_error(self._grader, prompt, response_text, truncated)

    def close(self) -> None:
        self._grader.close()


class RayGraderPool:
    """Hands responses to grader processes in turn."""

    def __init__(self, graders: list[ray.actor.ActorHandle], first: int = 0) -> None:
        self._graders, self._next = graders, first

    def submit(self, prompt: Prompt, response_text: str, truncated: bool) -> Callable[[], Grade]:
        grader = self._graders[self._next % len(self._graders)]
        self._next += 1
        verdict = grader.grade.remote(prompt, response_text, truncated)
        return lambda: ray.get(verdict)

    def close(self) -> None:
        """The processes belong to the run, not to this engine."""
