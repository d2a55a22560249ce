"""The rollout worker: draws the groups of its share of the prompts and has each response graded as it finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from sdpo import interrupt
from sdpo.config.schema import Config
from sdpo.environments.episode import Episode, GenerationFault, Policy
from sdpo.environments.registry import environment_maker
from sdpo.errors import SdpoError
from sdpo.grading.user_code import told
from sdpo.models.load import load_tokenizer
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample, Turn
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.rollout.build import build_engine
from sdpo.rollout.engine import SamplingSpec, request_seed
from sdpo.tokens.chat import ChatRenderer
from sdpo.tokens.response import ResponseText
from sdpo.tokens.think import left_open
from sdpo.workers.grader import GraderPool

T = TypeVar("T")


@dataclass(frozen=True)
class SamplingPlan:
    """How the groups of one call are drawn. `step` enters the seeds: the same step always draws the same responses."""

    n: int
    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    seed: int
    step: int
    log_probs: bool = True
    ignore_eos: bool = False
    reprompts: bool = False  # make those of a group as soon as its last response is graded


def training_plan(config: Config, step: int) -> SamplingPlan:
    rollout = config.actor_rollout_ref.rollout
    return SamplingPlan(
        n=rollout.n,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=config.data.max_response_length,
        seed=config.data.seed,
        step=step,
        log_probs=rollout.calculate_log_probs,
        ignore_eos=rollout.ignore_eos,
    )


@dataclass(frozen=True)
class RenderedPrompt:
    """One prompt, rendered."""

    prompt: Prompt
    prompt_ids: Sequence[int]


class RolloutWorker:
    def __init__(self, config: Config, device: str, graders: GraderPool, module: nn.Module | None = None) -> None:
        """`module`: the student itself, for an engine in the trainer's process that shares its weights."""
        self.config = config
        self._environment = environment_maker(config)
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.chat = ChatRenderer(self.tokenizer, config.data.apply_chat_template_kwargs)
        self.text = ResponseText(self.tokenizer)
        distillation = config.actor_rollout_ref.actor.self_distillation
        self._reprompts = RepromptBuilder(distillation, self.chat, config.data.seed)
        self.reasoning_parser = config.grading.reasoning_parser
        self.graders = graders
        self.engine = build_engine(config, device, module)
        self._drawing = asyncio.Lock()  # weights do not change under a response
        self._runner = asyncio.Runner()

    def generate(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        """`draw` for a caller without an event loop."""
        return self.run(self.draw(jobs, plan))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            with interrupt.raised_in(self._runner.get_loop()):
                return self._runner.run(work)
        except KeyboardInterrupt:
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Ends what a signal has left under way, which would raise it once more when the loop is closed."""
        loop = self._runner.get_loop()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        while left := [task for task in tasks if not task.done()]:
            with suppress(KeyboardInterrupt):  # the same one, from the tasks that it passes through
                loop.run_until_complete(asyncio.wait(left))
        for task in tasks:
            task.cancelled() or task.exception()  # nobody else asks for it

    async def draw(self, jobs: Sequence[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        """One graded group per job, in order, when the last response is graded."""
        async with self._drawing:
            version = self.engine.policy_version
            try:
                async with asyncio.TaskGroup() as running:
                    groups = []
                    for job, opening in zip(jobs, map(self._opening, jobs), strict=True):
                        episodes = (self._episode(job, opening, plan, index, version) for index in range(plan.n))
                        own = [running.create_task(episode) for episode in episodes]
                        groups.append(running.create_task(self._group(job.prompt, own, plan)))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the first; the others were cancelled because of it
            finally:
                await self.engine.rest()
        return [task.result() for task in groups]

    async def _group(self, prompt: Prompt, episodes: Sequence[asyncio.Task[Sample]], plan: SamplingPlan) -> Group:
        group = Group(prompt, [await episode for episode in episodes])
        if plan.reprompts:  # now: others are still being drawn, and each engine makes its own
            group.reprompts = self._reprompts.build(group, plan.step)
        return group

    async def _episode(self, job: RenderedPrompt, opening: str, plan: SamplingPlan, index: int, version: int) -> Sample:
        prompt, rollout = job.prompt, self.config.actor_rollout_ref.rollout
        policy = Policy(
            f"{prompt.uid}/{index}",
            prompt,
            job.prompt_ids,
            self.engine,
            self.chat,
            lambda turn, room: _sampling(plan, prompt.uid, index, turn, room),
            lambda ids: opening + self.text.decode(ids),
            plan.max_tokens,
            rollout.retries,
        )

        async def grade(answer: Turn | str) -> Grade:
            text, truncated = (answer, False) if isinstance(answer, str) else (answer.text, answer.truncated)
            return await self.graders.grade(prompt, text, truncated)

        try:
            async with asyncio.timeout(rollout.environment.max_seconds or None) as limit:
                episode = await self._environment().run(prompt, policy, grade)
            if any(turn.feedback and turn.said is None for turn in policy.turns):
                raise ValueError("feedback for a turn whose context the environment rendered itself: use policy.reply")
        except TimeoutError as error:
            if not limit.expired() or not policy.turns:
                return self._sample(policy, index, version, lost(error))
            episode = Episode(policy.turns[-1], await grade(policy.turns[-1]))  # its own slowness is no excuse
        except SdpoError:  # the engine is dead, a setting is wrong: the run ends
            raise
        except Exception as error:  # whatever an environment raises costs this sample, and is counted
            return self._sample(policy, index, version, lost(error))
        return self._sample(policy, index, version, episode if policy.fault is None else lost(policy.fault))

    def _opening(self, job: RenderedPrompt) -> str:
        return left_open(self.chat.generation_header(job.prompt), self.reasoning_parser)

    def _sample(self, policy: Policy, index: int, version: int, episode: Episode) -> Sample:
        several = len(policy.turns) > 1 or any(turn.feedback for turn in policy.turns)
        return Sample(
            prompt_uid=policy.prompt.uid,
            index=index,
            prompt_ids=policy.prompt_ids,
            response_ids=policy.response_ids,
            response_text=episode.answer.text,
            finish_reason=episode.answer.finish_reason,
            policy_version=version,
            sampler_logprobs=policy.log_probs,
            grade=episode.grade,
            turns=policy.turns if several else [],
            sequences=policy.sequences if several else [],
        )

    async def drawn(self) -> None:
        """Waits until nothing is drawn any more."""
        async with self._drawing:
            pass

    async def load_weights(self, place: str, version: int) -> None:
        async with self._drawing:
            await self.engine.load_weights(place, version)

    def close(self) -> None:
        self.engine.close()
        self._runner.close()
        self.graders.close()


def lost(error: Exception) -> Episode:
    """Of an engine or an environment that failed: no reward, so no statistic and no loss holds it."""
    whose = "engine" if isinstance(error, GenerationFault) else "environment"
    grade = Grade(GradeStatus.INFRA_ERROR, None, flags=(f"{whose}: {told(error)}",))
    return Episode(Turn(-1, (0, 0), "", "abort"), grade)


def _sampling(plan: SamplingPlan, uid: str, index: int, turn: int, room: int) -> SamplingSpec:
    return SamplingSpec(
        temperature=plan.temperature,
        top_p=plan.top_p,
        top_k=plan.top_k,
        max_tokens=room,
        seed=request_seed(plan.seed, plan.step, uid, index, turn),
        log_probs=plan.log_probs,
        ignore_eos=plan.ignore_eos,
    )
