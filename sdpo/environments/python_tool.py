"""A problem, up to so many calls of a sandboxed Python, then a final answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from sdpo.config.schema import Config
from sdpo.environments.episode import Episode, Grading, Policy
from sdpo.errors import ConfigError, problem
from sdpo.grading.call_formats import CallReader, format_of
from sdpo.grading.feedback import capped, clean
from sdpo.grading.registry import build_runner
from sdpo.grading.source_grader import Lazy
from sdpo.grading.tool_calls import WRAPPERS, Call, MalformedCall
from sdpo.records import GradeStatus, Prompt, Turn
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import ProgramOutcome
from sdpo.tokens.think import strip_think

NAME = "python"
DESCRIPTION = "Runs a Python program in a fresh process without network, and returns what it prints."
PARAMETERS = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The whole program."}},
    "required": ["code"],
}
MARKS = frozenset({*WRAPPERS, "<|message|>"} - {"functools"})
NO_CALL_LEFT = "No call is left: give the final answer."


class PythonTool:
    """Calls are written in the model's own format, as its chat template shows tools. Each is answered by a message, in
    order; one that cannot be read is told why. Every program starts anew: nothing stays from one call to the next, and
    nothing of it is there when the answer is graded.

    A turn whose call failed carries the error as feedback: what the teacher is told before that turn.
    """

    tools = ({"type": "function", "function": {"name": NAME, "description": DESCRIPTION, "parameters": PARAMETERS}},)

    def __init__(self, config: Config, runner: Lazy, reader: CallReader, max_calls: int, feedback: bool) -> None:
        grading = config.grading
        self._runner, self._reader, self._left, self._feedback = runner, reader, max_calls, feedback
        self._limits = Limits(grading.cpu_seconds, grading.memory_mb, grading.max_output_kb)
        self._max_chars, self._reasoning = grading.feedback_max_chars, grading.reasoning_parser

    @classmethod
    def maker(cls, config: Config, max_calls: int = 4, feedback: bool = True) -> Callable[[], PythonTool]:
        """`max_calls`: of one episode, those that fail included. `feedback`: tell the teacher why a call failed."""
        if type(max_calls) is not int or max_calls < 1:
            field = "actor_rollout_ref.rollout.environment.settings.max_calls"
            raise ConfigError(problem(field, max_calls, "a whole number >= 1"))
        runner = Lazy(lambda: build_runner(config.grading))
        return partial(cls, config, runner, CallReader(config.grading.tool_parser), max_calls, feedback)

    async def run(self, prompt: Prompt, policy: Policy, grade: Grading) -> Episode:
        turn = await policy.reply()
        last = False  # what is said behind the last result is the answer, whatever it is
        while not last and (calls := await self._calls(turn, prompt)):
            results = [await self._result(call) for call in calls]
            failures = [text for text, failed in results if failed]
            if failures and self._feedback:
                turn.feedback = "\n".join(failures)
            last = self._left < 1
            answered = await policy.reply(*({"role": "tool", "name": NAME, "content": text} for text, _ in results))
            turn = answered if answered.sequence >= 0 else replace(turn, finish_reason="length")  # no room was left
        return Episode(turn, await grade(turn))

    async def _calls(self, turn: Turn, prompt: Prompt) -> list[Call | MalformedCall]:
        """Of a whole turn: what was cut off may be half a command."""
        answer = strip_think(turn.text, parser=self._reasoning)
        marked = format_of(answer) is not None or any(mark in answer for mark in MARKS)
        if turn.truncated or not marked:
            return []
        try:
            return list(await asyncio.to_thread(self._reader.read, answer, prompt.tools, [], False))
        except MalformedCall as error:
            return [error]

    async def _result(self, call: Call | MalformedCall) -> tuple[str, bool]:
        """What the model is told, and whether that is a failure."""
        if self._left < 1:
            return NO_CALL_LEFT, True
        self._left -= 1
        if isinstance(call, MalformedCall):
            return f"No call was made. {call}", True
        code = call.arguments.get("code")
        if call.name != NAME or not isinstance(code, str):
            return f"There is one tool, {NAME}, and it takes one text, code.", True
        outcome = await asyncio.to_thread(self._run, code)
        text = capped(clean(told(outcome)), self._max_chars)
        return text or "(nothing was printed)", outcome.status is not GradeStatus.OK

    def _run(self, code: str) -> ProgramOutcome:
        return self._runner.get().run_program(code, b"", self._limits)


def told(outcome: ProgramOutcome) -> str:
    out, err = (part.decode("utf-8", "replace").strip() for part in (outcome.stdout, outcome.stderr))
    if outcome.status is GradeStatus.OK:
        return "\n".join(filter(None, (out, err)))
    fault = outcome.fault
    why = f"{fault.type}: {fault.message}" if fault else f"{outcome.status}: {outcome.detail}"
    return "\n".join(filter(None, (out, err, why)))
