"""Answers of a model behind an OpenAI-compatible server, graded here."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from sdpo.config.schema import Config
from sdpo.data.load import iter_prompts
from sdpo.errors import ConfigError, RolloutError, problem
from sdpo.evaluation.measure import Measured, problem_of
from sdpo.grading.backends.reply import read_object
from sdpo.grading.backends.retry import TransportFault
from sdpo.grading.registry import build_source_grader
from sdpo.records import FinishReason, Grade, GradeStatus, Group, Prompt, Sample
from sdpo.rollout.engine import request_seed
from sdpo.training.evaluate import validation_plan
from sdpo.workers.grader import ThreadGraderPool
from sdpo.workers.rollout import SamplingPlan

KEY_VARIABLE = "OPENAI_API_KEY"
AT_ONCE = 16  # requests under way
PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds between tries, each times a random factor in [0.5, 1.5]
BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class Server:
    """`seconds`: for one answer, all of it. `transport`: of a test."""

    def __init__(
        self, url: str, config: Config, seconds: float = 600.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url, self.config, self.seconds = url.rstrip("/"), config, seconds
        self._transport = transport

    def measure(
        self, name: str, prompts: Sequence[Prompt], say: Callable[[str], None], keep: Callable[[Group], None]
    ) -> Measured:
        """Raises ConfigError for a name that is not served, RolloutError for a server that does not answer or refuses
        the requests. An answer that it failed to give five times over is lost, and counted."""
        plan = validation_plan(self.config)
        say(f"{name}: {len(prompts)} problems, {plan.n} answers each, from {self.url}")
        graders, threshold = ThreadGraderPool(self.config), self.config.trainer.val_success_threshold
        problems = []
        try:
            for group in asyncio.run(self._groups(name, prompts, plan, graders)):
                keep(group)
                problems.append(problem_of(group, threshold, tokens_known=False))
        finally:
            graders.close()
        return Measured(name, problems)

    async def _groups(
        self, name: str, prompts: Sequence[Prompt], plan: SamplingPlan, graders: ThreadGraderPool
    ) -> list[Group]:
        places = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(headers=_headers(), timeout=self.seconds, transport=self._transport) as client:
            await self._check_served(client, name)

            async def one(prompt: Prompt, index: int) -> Sample:
                request = _request(name, prompt, plan, index, self.config.data.apply_chat_template_kwargs)
                try:
                    async with places:
                        text, why = await self._ask(client, request)
                except TransportFault as fault:
                    lost = Grade(GradeStatus.INFRA_ERROR, None, flags=(f"server: {fault}",))
                    return _sample(prompt, index, "", "abort", lost)
                return _sample(prompt, index, text, why, await graders.grade(prompt, text, why == "length"))

            try:
                async with asyncio.TaskGroup() as running:
                    tasks = [[running.create_task(one(p, index)) for index in range(plan.n)] for p in prompts]
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None  # the first; the others were cancelled because of it
        own = zip(prompts, tasks, strict=True)
        return [Group(prompt, [task.result() for task in answers]) for prompt, answers in own]

    async def _check_served(self, client: httpx.AsyncClient, name: str) -> None:
        try:
            reply = await client.get(f"{self.url}/models", timeout=10.0)
            served = [str(model["id"]) for model in read_object(reply.content)["data"]]
        except (httpx.HTTPError, httpx.InvalidURL, TransportFault, KeyError, TypeError) as error:
            fix = f"start it, or correct the address (it ends in /v1); its key is read from {KEY_VARIABLE}"
            told = f"{self.url} ({type(error).__name__}: {error})"
            raise RolloutError(problem("--base-url", told, "a server that lists its models", fix)) from error
        if name not in served:
            raise ConfigError(problem("model", name, " | ".join(served), f"{self.url} does not serve it"))

    async def _ask(self, client: httpx.AsyncClient, request: dict[str, Any]) -> tuple[str, FinishReason]:
        """Text and finish reason of one answer. Raises TransportFault when no try brought one."""
        for pause in PAUSES:
            try:
                return await self._once(client, request)
            except TransportFault:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        return await self._once(client, request)

    async def _once(self, client: httpx.AsyncClient, request: dict[str, Any]) -> tuple[str, FinishReason]:
        url = f"{self.url}/chat/completions"
        try:
            async with asyncio.timeout(self.seconds):
                reply = await client.post(url, json=request)
        except (httpx.HTTPError, TimeoutError) as error:
            raise TransportFault(f"{type(error).__name__}: {error}") from None
        if reply.status_code in BUSY:
            raise TransportFault(f"status {reply.status_code}")
        if reply.status_code != 200:  # it will not do better next time, and the others are like it
            raise RolloutError(f"{url}: status {reply.status_code}: {' '.join(reply.text[:300].split())}")
        try:
            choice = read_object(reply.content)["choices"][0]
            return _text(choice["message"]), "length" if choice.get("finish_reason") == "length" else "stop"
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise TransportFault(f"no answer in the reply ({type(error).__name__}: {error})") from None


def gradable(config: Config) -> list[Prompt]:
    """The problems of `data.val_files` that the graders can judge. The server renders and counts their tokens."""
    if (name := config.actor_rollout_ref.rollout.environment.name) != "single_turn":
        fix = "evaluate the weights themselves: the environment needs their token ids"
        raise ConfigError(problem("actor_rollout_ref.rollout.environment.name", name, "single_turn", fix))
    grader = build_source_grader(config)
    try:
        prompts = iter_prompts(config.data.val_files, config.data, "val")
        return [prompt for prompt in prompts if grader.check(prompt) is None]
    finally:
        grader.close()


def _request(
    name: str, prompt: Prompt, plan: SamplingPlan, index: int, template_options: dict[str, Any]
) -> dict[str, Any]:
    request = {
        "model": name,
        "messages": list(prompt.messages),
        "temperature": plan.temperature,
        "top_p": plan.top_p,
        "max_tokens": plan.max_tokens,
        "seed": request_seed(plan.seed, plan.step, prompt.uid, index, 0) % (1 << 31),
    }
    if plan.top_k > 0:
        request["top_k"] = plan.top_k  # vLLM's and SGLang's; OpenAI has none
    if options := template_options | prompt.template_kwargs:
        request["chat_template_kwargs"] = options  # likewise: thinking on or off
    if prompt.tools:
        request["tools"] = list(prompt.tools)
    return request


def _text(message: dict[str, Any]) -> str:
    """What is graded: calls that the server has parsed are written out again."""
    calls = [call["function"] for call in message.get("tool_calls") or []]
    written = [f'{{"name": {json.dumps(c["name"])}, "arguments": {c["arguments"]}}}' for c in calls]
    return "\n".join(
        [message.get("content") or "", *(f"<tool_call>\n{call}\n</tool_call>" for call in written)]
    ).strip()


def _sample(prompt: Prompt, index: int, text: str, why: FinishReason, grade: Grade) -> Sample:
    return Sample(
        prompt_uid=prompt.uid, index=index, prompt_ids=[], response_ids=[], response_text=text, finish_reason=why,
        policy_version=0, sampler_logprobs=None, grade=grade,
    )  # fmt: skip


def _headers() -> dict[str, str]:
    key = os.environ.get(KEY_VARIABLE, "")
    return {"Authorization": f"Bearer {key}"} if key else {}
