"""The processes of a Ray run: verl workers around the plain classes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

import ray
import torch
import torch.distributed as dist
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

import sdpo.workers.cpu_platform  # noqa: F401  (before verl's single controller)
from sdpo.config.schema import Config
from sdpo.grading.registry import build_grader
from sdpo.models.shard import BACKENDS
from sdpo.records import Grade, GradeStatus, Group, Prompt, StepReport
from sdpo.workers.actor import Actor, RankShare
from sdpo.workers.cores import use_cores_in_ray
from sdpo.workers.grader import GradingMeter, grade_or_infra_error, grading_of, sandbox_faults
from sdpo.workers.ray_teacher import RayServers
from sdpo.workers.rollout import RenderedPrompt, RolloutWorker, SamplingPlan

GIVE_UP = 4  # responses in a row that ended every process they were given


class ActorRayWorker(Worker):
    """One training rank. `teacher`: handles of its processes, if it has any, and the folder for the weights it gets."""

    def __init__(
        self, config: Config, device: str, total_steps: int, teacher: tuple[list[ray.actor.ActorHandle], str] | None
    ) -> None:
        super().__init__()
        use_cores_in_ray(config, device, "actor")
        if device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        if self.world_size > 1:
            dist.init_process_group(BACKENDS[device], rank=self.rank, world_size=self.world_size)
        servers = RayServers(*teacher, self.rank, self.world_size) if teacher else None
        self._actor = Actor(config, self.rank, self.world_size, device, total_steps, servers)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> bool:
        return True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def prefix_sharing_unsupported(self) -> str | None:
        return self._actor.prefix_sharing_unsupported

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def reference_kl(self, shares: list[RankShare]) -> dict[int, float]:
        return self._actor.reference_kl(shares)

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
        use_cores_in_ray(config, device, "rollout")
        self._rollout = RolloutWorker(config, device, RayGraderPool(graders, config, first=self.rank))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ready(self) -> bool:
        return True

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, blocking=False)
    async def generate(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        return await self._rollout.draw(jobs, plan)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def grading_metrics(self) -> dict[str, float]:
        return self._rollout.graders.metrics()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_weights(self, folder: str, version: int) -> None:
        await self._rollout.load_weights(folder, version)


class GraderProcess:
    """One grader with its own sandbox server. Ray restarts it when it dies and repeats once what it was doing."""

    def __init__(self, config: Config) -> None:
        self._grader = build_grader(config)

    def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        return grade_or_infra_error(self._grader, prompt, response_text, truncated)

    def metrics(self) -> dict[str, float]:
        return sandbox_faults(self._grader)


def grader_processes(config: Config, env: dict[str, str]) -> list[ray.actor.ActorHandle]:
    """`grading.workers` of them, with the environment `env`."""
    kind = ray.remote(
        max_concurrency=config.grading.concurrency,
        max_restarts=-1,
        max_task_retries=1,
        num_cpus=1,
        runtime_env={"env_vars": env},
    )(GraderProcess)
    return [kind.remote(config) for _ in range(config.grading.workers)]


class RayGraderPool:
    """Hands responses to grader processes in turn.

    A response whose process died is graded again, up to `grading.retries` times; then its status is infra_error. After
    `GIVE_UP` such responses in a row the processes are not started any more: what ends them is in the grading itself,
    e.g. os._exit() in a reward function.
    """

    def __init__(self, graders: list[ray.actor.ActorHandle], config: Config, first: int = 0) -> None:
        self._graders, self._next = graders, first
        self._retries = config.grading.retries
        self._what = grading_of(config)
        self._meter = GradingMeter()
        self._lost = 0  # responses in a row that ended every process they were given
        self._given_up = ""
        self._again = asyncio.Lock()

    async def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        arguments = (prompt, response_text, truncated)
        if not self._given_up:
            self._meter.begin()
            verdict = self._send(arguments)
            verdict.future().add_done_callback(self._meter.end)
            try:
                return self._alive(await verdict)
            except ray.exceptions.RayActorError:
                return await self._grade_again(arguments)
        return self._lost_grade(self._given_up)

    def metrics(self) -> dict[str, float]:
        """Of this engine's responses; `RayWorkers` adds what the processes say of themselves."""
        return self._meter.take()

    def _send(self, arguments: tuple[Prompt, str, bool]) -> ray.ObjectRef:
        grader = self._graders[self._next % len(self._graders)]
        self._next += 1
        return grader.grade.remote(*arguments)

    async def _grade_again(self, arguments: tuple[Prompt, str, bool]) -> Grade:
        """One response at a time: most were only beside the one that ended the process."""
        async with self._again:
            for _ in range(self._retries):
                if self._given_up:
                    return self._lost_grade(self._given_up)
                with contextlib.suppress(ray.exceptions.RayActorError):
                    return self._alive(await self._send(arguments))
            self._count_lost(arguments[0])
        source = arguments[0].data_source
        died = f"the grader process died each time on data_source {source!r}, {self._what}"
        return self._lost_grade(self._given_up or died)

    def _alive(self, grade: Grade) -> Grade:
        self._lost = 0
        return grade

    @staticmethod
    def _lost_grade(why: str) -> Grade:
        return Grade(GradeStatus.INFRA_ERROR, reward=None, flags=(why,))

    def _count_lost(self, prompt: Prompt) -> None:
        self._lost += 1
        if self._lost >= GIVE_UP and not self._given_up:
            self._given_up = (
                f"{self._lost} responses in a row ended the grader process each time, the last on data_source "
                f"{prompt.data_source!r}, {self._what}: something there ends it, e.g. os._exit() or a crash"
            )
            for grader in self._graders:
                ray.kill(grader)

    def close(self) -> None:
        """The processes belong to the run, not to this engine."""
