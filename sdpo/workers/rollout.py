"""The rollout worker: draws the groups of its share of the prompts and has each response graded as it finishes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from sdpo.config.schema import Config
from sdpo.models.load import load_tokenizer
from sdpo.records import Group, Prompt, Sample
from sdpo.rollout.build import build_engine
from sdpo.rollout.engine import Generation, GenerationRequest, SamplingSpec, request_seed
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
    prompt_ids: list[int]


class RolloutWorker:
    def __init__(self, config: Config, device: str, graders: GraderPool, module: nn.Module | None = None) -> None:
        """`module`: the student itself, for an engine in the trainer's process that shares its weights."""
        self.tokenizer = load_tokenizer(config.actor_rollout_ref.model)
        self.chat = ChatRenderer(self.tokenizer, config.data.apply_chat_template_kwargs)
        self.text = ResponseText(self.tokenizer)
        self.reasoning_parser = config.grading.reasoning_parser
        self.graders = graders
        self.engine = build_engine(config, device, module)
        self._drawing = asyncio.Lock()  # weights do not change under a response
        self._runner = asyncio.Runner()

    def generate(self, jobs: list[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        """`draw` for a caller without an event loop."""
        return self.run(self.draw(jobs, plan))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def draw(self, jobs: list[RenderedPrompt], plan: SamplingPlan) -> list[Group]:
        """One graded group per job, in order, when the last response is graded."""
        async with self._drawing:
            version = self.engine.policy_version
            try:
                async with asyncio.TaskGroup() as running:
                    tasks = [
                        [running.create_task(self._answer(*job, plan, index, version)) for index in range(plan.n)]
                        for job in zip(jobs, map(self._opening, jobs), strict=True)
                    ]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the first; the others were cancelled because of it
            finally:
                await self.engine.rest()
        return [Group(job.prompt, [task.result() for task in own]) for job, own in zip(jobs, tasks, strict=True)]

    async def _answer(self, job: RenderedPrompt, opening: str, plan: SamplingPlan, index: int, version: int) -> Sample:
        name = f"{job.prompt.uid}/{index}"
        request = GenerationRequest(name, job.prompt_ids, _sampling(plan, job.prompt.uid, index))
        sample = self._sample(await self.engine.generate(request), job, index, version, opening)
        sample.grade = await self.graders.grade(job.prompt, sample.response_text, sample.truncated)
        return sample

    def _opening(self, job: RenderedPrompt) -> str:
        return left_open(self.chat.generation_header(job.prompt), self.reasoning_parser)

    def _sample(self, generation: Generation, job: RenderedPrompt, index: int, version: int, opening: str) -> Sample:
        return Sample(
            prompt_uid=job.prompt.uid,
            index=index,
            prompt_ids=job.prompt_ids,
            response_ids=generation.response_ids,
            response_text=opening + self.text.decode(generation.response_ids),
            finish_reason=generation.finish_reason,
            policy_version=version,
            sampler_logprobs=generation.log_probs,
        )

    async def load_weights(self, folder: str, version: int) -> None:
        async with self._drawing:
            await self.engine.load_weights(folder, version)

    def close(self) -> None:
        self.engine.close()
        self._runner.close()
        self.graders.close()


def _sampling(plan: SamplingPlan, uid: str, index: int) -> SamplingSpec:
    return SamplingSpec(
        temperature=plan.temperature,
        top_p=plan.top_p,
        top_k=plan.top_k,
        max_tokens=plan.max_tokens,
        seed=request_seed(plan.seed, plan.step, uid, index),
        log_probs=plan.log_probs,
        ignore_eos=plan.ignore_eos,
    )
