"""The processes of a Ray run: verl workers around the plain classes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl.single_controller.base.decorator import Dispatch, register

from sdpo.config.schema import Config
from sdpo.grading.registry import build_grader
from sdpo.records import Grade, GradeStatus, Group, Prompt, StepReport
from sdpo.weights import gloo
from sdpo.workers.actor import Actor, RankShare
from sdpo.workers.cores import use_cores_in_ray
from sdpo.workers.grader import GradingMeter, grade_or_infra_error, grading_of, sandbox_faults
from sdpo.workers.ray_rank import RayRank
from sdpo.workers.ray_teacher import RayServers
from sdpo.workers.rollout import RenderedPrompt, RolloutWorker, SamplingPlan

GIVE_UP = 4  # responses in a row that ended every process they were given


class ActorRayWorker(RayRank):
    """One training rank. `teacher`: handles of its processes, if it has any, and the folder for the weights it gets;
    "": they go over the network."""

    def __init__(
        self, config: Config, device: str, total_steps: int, teacher: tuple[list[ray.actor.ActorHandle], str] | None
    ) -> None:
        super().__init__(config, device)
        use_cores_in_ray(config, device, "actor")
        self._total_steps, self._teacher = total_steps, teacher

    def start(self, address: str) -> None:
        self._meet(address)
        servers = None
        if self._teacher:
            servers = RayServers(*self._teacher, self.rank, self.world_size, self._transfer_limit)
        self._actor = Actor(self._config, self.rank, self.world_size, self._device, self._total_steps, servers)

    def open_transfer(self, receivers: int) -> str:
        """Of rank 0: where its next weights are to be had."""
        return gloo.new_base(ray.util.get_node_ip_address(), receivers, self._transfer_limit)

    @property
    def _transfer_limit(self) -> float:
        return self._config.actor_rollout_ref.rollout.checkpoint_engine.timeout_s

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


class RolloutRayWorker(RayRank):
    """One inference engine. `mates`: of each engine, how many are on its machine; verl knows only equal numbers."""

    def __init__(self, config: Config, device: str, graders: list[ray.actor.ActorHandle], mates: Sequence[int]) -> None:
        super().__init__(config, device)
        os.environ["RAY_LOCAL_WORLD_SIZE"] = str(mates[self.rank])
        use_cores_in_ray(config, device, "rollout")
        self._graders = graders

    async def start(self, address: str) -> None:
        """In the event loop that it draws in. Engines do not compute together: no address."""
        graders = RayGraderPool(self._graders, self._config, first=self.rank)
        self._rollout = RolloutWorker(self._config, self._device, graders)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, blocking=False)
    async def generate(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        return await self._rollout.draw(jobs, plan)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def grading_metrics(self) -> dict[str, float]:
        return self._rollout.graders.metrics()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def drawn(self) -> None:
        await self._rollout.drawn()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_weights(self, place: str, version: int) -> None:
        await self._rollout.load_weights(place, version)


class GraderProcess:
    """One grader with its own sandbox server. Ray restarts it when it dies and repeats once what it was doing."""

    def __init__(self, config: Config) -> None:
        self._grader = build_grader(config)

    def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        return grade_or_infra_error(self._grader, prompt, response_text, truncated)

    def metrics(self) -> dict[str, float]:
        return sandbox_faults(self._grader)


def grader_processes(
    config: Config, env: dict[str, str], places: list[PlacementGroupSchedulingStrategy]
) -> list[ray.actor.ActorHandle]:
    """One at each of the places, with the environment `env`."""
    kind = ray.remote(
        max_concurrency=config.grading.concurrency,
        max_restarts=-1,
        max_task_retries=1,
        num_cpus=1,
        runtime_env={"env_vars": env},
    )(GraderProcess)
    return [kind.options(scheduling_strategy=place).remote(config) for place in places]


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
