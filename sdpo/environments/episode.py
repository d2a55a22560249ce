"""What an environment is, and the model as it sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sdpo.records import Grade, Prompt, Turn
from sdpo.rollout.engine import Generation, GenerationRequest, RolloutEngine, SamplingSpec
from sdpo.tokens.chat import ChatRenderer


@dataclass(frozen=True)
class Episode:
    """What an environment makes of a prompt: the answer that counts, and its grade."""

    answer: Turn
    grade: Grade


class Grading(Protocol):
    async def __call__(self, answer: Turn | str) -> Grade:
        """The verdict of the row's grader. Not an exception when the grader failed: a grade says that, too."""


class Environment(Protocol):
    """One episode; each gets an instance of its own. `tools` of the class are shown to the model in every prompt."""

    async def run(self, prompt: Prompt, policy: Policy, grade: Grading) -> Episode:
        """What it raises is a fault of the environment: the sample is masked and counted, never a reward of zero."""
        ...


class GenerationFault(Exception):
    """The engine gave a response up, also when it was asked again."""


class Policy:
    """The model in one episode. Keeps every token as the engine saw it, so no environment can get them wrong."""

    def __init__(
        self,
        name: str,
        prompt: Prompt,
        prompt_ids: Sequence[int],
        engine: RolloutEngine,
        chat: ChatRenderer,
        sampling: Callable[[int, int], SamplingSpec],
        text: Callable[[Sequence[int]], str],
        max_tokens: int,
        retries: int,
    ) -> None:
        """`sampling(turn, max_tokens)`: how a turn is drawn. `max_tokens`: of the episode behind its prompt, tool
        results included. `retries`: of a response that the engine gave up."""
        self.prompt, self.prompt_ids = prompt, list(prompt_ids)
        self.turns: list[Turn] = []
        self.sequences: list[list[int]] = []
        self.log_probs: list[float] | None = []
        self.fault: GenerationFault | None = None
        self._name, self._engine, self._chat, self._sampling, self._text = name, engine, chat, sampling, text
        self._max_tokens, self._retries, self._asked = max_tokens, retries, 0

    async def reply(self, *messages: dict[str, Any] | str) -> Turn:
        """The first time: the answer to the prompt. Later: what the model says to `messages` (a text is the user's).

        They are put behind the tokens that are there; nothing is rendered again. Where no room is left, the turn has no
        tokens, is `truncated`, and its `sequence` is -1. DataError: the chat template cannot go on with them.
        """
        said = tuple({"role": "user", "content": m} if isinstance(m, str) else m for m in messages)
        if bool(said) != bool(self.turns):
            raise ValueError("reply: the first answer is to the prompt alone, a later one to at least one message")
        if not said:
            return await self.complete(self.prompt_ids, said)
        last = self.turns[-1]
        context = self.sequences[last.sequence][: last.span[1]]
        added = self._chat.continuation_ids(self.prompt, said)
        if last.finish_reason == "stop" and added[:1] and added[0] in {context[-1], *self._engine.stop_ids}:
            added = added[1:]  # the model has ended its turn itself
        return await self.complete(context + added, said)

    def render(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """A conversation as the chat template has it, for `complete`. Templates may leave out earlier reasoning."""
        return self._chat.prompt_ids(messages, self.prompt.tools, self.prompt.template_kwargs)

    async def complete(self, context_ids: Sequence[int], said: tuple[dict[str, Any], ...] | None = None) -> Turn:
        """What the model says behind these tokens. Where they do not begin with a sequence that is there, the episode
        goes on as a new one (a fork): no token is trained behind others than the engine saw."""
        context = list(context_ids)
        room = min(self._max_tokens + len(self.prompt_ids), self._engine.max_model_len) - len(context)
        if self._asked == 0:
            room = self._max_tokens  # of a single answer; the engine knows its own limit
        elif room < 1:
            return Turn(-1, (len(context), len(context)), "", "length", said)
        number, self._asked = self._asked, self._asked + 1
        name = f"{self._name}/{number}" if number else self._name
        generation = await self._drawn(GenerationRequest(name, context, self._sampling(number, room)))
        return self._keep(context, generation, said)

    async def _drawn(self, request: GenerationRequest) -> Generation:
        for _ in range(self._retries + 1):
            generation = await self._engine.generate(request)
            if generation.finish_reason != "abort":
                return generation
        self.fault = GenerationFault(generation.fault or "the engine gave the response up")
        raise self.fault

    def _keep(self, context: list[int], generation: Generation, said: tuple[dict[str, Any], ...] | None) -> Turn:
        """Only now, behind the answer: other conversations of the episode may have gone on meanwhile."""
        fitting = [n for n, ids in enumerate(self.sequences) if context[: len(ids)] == ids]
        if fitting:
            home = max(fitting, key=lambda n: (len(self.sequences[n]), n))
        else:
            home = len(self.sequences)
            self.sequences.append([])
        self.sequences[home] = [*context, *generation.response_ids]
        span = len(context), len(context) + len(generation.response_ids)
        turn = Turn(home, span, self._text(generation.response_ids), generation.finish_reason, said)
        self.turns.append(turn)
        if generation.log_probs is None or self.log_probs is None:
            self.log_probs = None
        else:
            self.log_probs += generation.log_probs
        return turn

    @property
    def response_ids(self) -> list[int]:
        """All that the model wrote, in order."""
        return [i for turn in self.turns for i in self.sequences[turn.sequence][slice(*turn.span)]]
