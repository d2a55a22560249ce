"""Grades an answer to the built-in task: runs it as the body of `f(x)` on hidden inputs and says what went wrong.

The program runs in the sandbox; the verdict and the feedback are made here, from the values it returned and from the
text of the answer. The answer's steps are recognised line by line and replayed with this package's own functions: no
code of the model's is ever evaluated on this side.
"""

from __future__ import annotations

import ast
import functools
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sdpo.embedded.programs import ALL_STEPS, Program, Step, run_steps, steps_of
from sdpo.grading.code import error_text
from sdpo.grading.feedback import TOO_LONG, FeedbackOptions, capped, clean, show
from sdpo.records import Grade, GradeStatus, Prompt, TestOutcome
from sdpo.sandbox import python_syntax
from sdpo.sandbox.limits import Limits

MAX_ANSWER = 4000  # characters
MAX_VALUE = 24  # characters of a value in the feedback
MAX_EXPRESSION = 40  # characters on the right of a step
REPLAY_LIMIT = 10**12  # larger values are not replayed
REPLAY_STEPS = 12  # nor more steps than this
HEADINGS = {
    GradeStatus.WRONG: "Wrong answer",
    GradeStatus.RUNTIME_ERROR: "Runtime error",
    GradeStatus.TIMEOUT: "Time limit exceeded",
    GradeStatus.OUTPUT_LIMIT: "Output limit exceeded",
    GradeStatus.MEMORY_LIMIT: "Memory limit exceeded",
}


@dataclass(frozen=True)
class FunctionRun:
    """What one call of the answer's function came to, as the sandbox reports it."""

    value: Any = None  # the returned value as plain JSON data; meaningless when `status` is not OK
    error: str = ""  # e.g. "NameError: name 'y' is not defined"
    status: GradeStatus = GradeStatus.OK


RunFunction = Callable[[str, str, list[list[Any]]], Sequence[FunctionRun]]


class ProgramsGrader:
    """Grader of data source `programs`. `run_function(source, name, inputs)` is the sandbox: one FunctionRun per input,
    GradingError when it cannot run at all. Thread safe when `run_function` is."""

    def __init__(self, run_function: RunFunction, public_only: bool = False, feedback_max_chars: int = 2000):
        self._run_function = run_function
        self._public_only = public_only
        self._feedback_max_chars = feedback_max_chars

    def grade(self, prompt: Prompt, response_text: str, truncated: bool = False) -> Grade:
        started = time.monotonic()
        refused = refusal(prompt, response_text, truncated, self._public_only)
        if refused is None:
            truth = prompt.ground_truth
            inputs = [list(case["args"]) for case in truth["cases"]]
            runs = self._run_function(function_source(response_text, truth["name"]), truth["name"], inputs)
            refused = verdict(prompt, response_text, runs, self._public_only)
        return Grade(
            status=refused.status,
            reward=refused.reward,
            passed_fraction=refused.passed_fraction,
            feedback=capped(clean(refused.feedback), self._feedback_max_chars),
            tests=refused.tests,
            seconds=time.monotonic() - started,
        )

    def close(self) -> None:
        """Nothing is held open."""


class ProgramsKind:
    """The task's grader on a sandbox or a remote back end (`run_function`)."""

    def __init__(self, runner: Any, limits: Limits, options: FeedbackOptions) -> None:
        def run(source: str, name: str, inputs: list[list[Any]]) -> list[FunctionRun]:
            outcomes = runner.run_function(source, name, inputs, limits)
            return [FunctionRun(o.value, error_text(o.fault, o.detail).split("\n")[0], o.status) for o in outcomes]

        self._grader = ProgramsGrader(run, options.public_only, options.max_chars)

    def check(self, prompt: Prompt) -> str | None:
        truth = prompt.ground_truth
        return None if isinstance(truth, dict) and truth.get("cases") else "no tests"

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Any:
        return self._grader.grade(prompt, answer, truncated)


def answer_text(response_text: str) -> str:
    """The program in a response: the whole text, or what stands inside its last Markdown code block."""
    lines = response_text.strip("\n").split("\n")
    fences = [i for i, line in enumerate(lines) if line.lstrip().startswith("```")]
    if len(fences) >= 2:
        lines = lines[fences[-2] + 1 : fences[-1]]
    return textwrap.dedent("\n".join(lines)).rstrip()


def function_source(response_text: str, name: str) -> str:
    """Python source that defines `name(x)`: the answer itself when it already does, else the answer as its body."""
    text = answer_text(response_text)
    if text.startswith(f"def {name}("):
        return text + "\n"
    return f"def {name}(x):\n" + textwrap.indent(text, "    ") + "\n"


def refusal(prompt: Prompt, response_text: str, truncated: bool, public_only: bool = False) -> Grade | None:
    """The grade of an answer that need not be run: cut off, empty, too long, or not Python. None: run it."""
    if not prompt.ground_truth["cases"]:
        return Grade(GradeStatus.NO_TESTS, reward=None)
    text = answer_text(response_text)
    if len(text) > MAX_ANSWER:
        return _failure(GradeStatus.FORMAT_ERROR, f"The answer is longer than {MAX_ANSWER} characters.")
    hint = "" if public_only else _hint(prompt, response_text)
    if truncated:
        return _failure(GradeStatus.TRUNCATED, "The answer was cut off before it ended.", hint)
    if not text.strip():
        return _failure(GradeStatus.FORMAT_ERROR, "The answer holds no program.", hint)
    try:
        python_syntax.parse(function_source(text, prompt.ground_truth["name"]))
    except SyntaxError as error:
        line = (error.text or "").strip()
        return _failure(GradeStatus.FORMAT_ERROR, f"Syntax error in: {line}", hint)
    except (ValueError, RecursionError, MemoryError):
        return _failure(GradeStatus.FORMAT_ERROR, "Syntax error: the answer cannot be parsed.")
    return None


def verdict(prompt: Prompt, response_text: str, runs: Sequence[FunctionRun], public_only: bool = False) -> Grade:
    """The grade of an answer from what its function returned on the hidden inputs, one run per case and in their order.

    Reward 1 only when every case passes. Every input is hidden, so with `public_only` the feedback is only the heading.
    """
    cases = prompt.ground_truth["cases"]
    outcomes = tuple(_outcome(case, run) for case, run in zip(cases, runs, strict=True))
    passed = sum(outcome.status is GradeStatus.OK for outcome in outcomes) / len(outcomes)
    if passed == 1.0:
        return Grade(GradeStatus.OK, reward=1.0, passed_fraction=1.0, tests=outcomes)
    failing = [i for i, outcome in enumerate(outcomes) if outcome.status is not GradeStatus.OK]
    errors = [i for i in failing if outcomes[i].status is not GradeStatus.WRONG]
    told = _most_telling(prompt, response_text, errors or failing)
    status = outcomes[told].status
    feedback = HEADINGS[status] if public_only else _feedback(prompt, response_text, told, outcomes[told])
    return Grade(status, reward=0.0, passed_fraction=passed, feedback=feedback, tests=outcomes)


@functools.lru_cache(maxsize=256)
def recognised_steps(response_text: str) -> tuple[tuple[Step | None, ...], bool]:
    """The steps of an answer in order, None for a statement that is no known step (nothing is read after it), and
    whether the answer returns. `return <expression>` counts as a step and a return."""
    try:
        statements = python_syntax.parse(function_source(response_text, "f")).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        statements = []
    if not statements or not isinstance(function := statements[0], ast.FunctionDef):
        return (*_leading_steps(response_text), None), False
    steps, returned = _steps_of_statements(function.body)
    return tuple(steps), returned


def _steps_of_statements(statements: Sequence[ast.stmt]) -> tuple[list[Step | None], bool]:
    steps: list[Step | None] = []
    known = _steps_by_expression()
    for statement in statements[:REPLAY_STEPS]:
        if isinstance(statement, ast.Return):
            if _expression_key(statement.value) != "x":
                steps.append(known.get(_expression_key(statement.value)))
            return steps, True
        if not isinstance(statement, ast.Assign) or [_expression_key(t) for t in statement.targets] != ["x"]:
            return [*steps, None], False
        steps.append(known.get(_expression_key(statement.value)))
        if steps[-1] is None:
            return steps, False
    return steps, False


def _leading_steps(response_text: str) -> list[Step]:
    """The steps before the first line that cannot be read, for answers that do not parse as a whole."""
    by_line = {step.code: step for step in ALL_STEPS}
    steps = []
    for line in answer_text(response_text).split("\n")[:REPLAY_STEPS]:
        if line.strip() not in by_line:
            break
        steps.append(by_line[line.strip()])
    return steps


def _expression_key(expression: ast.expr | None) -> str:
    """The expression in one spelling; "" for one longer than any step's, which could be nested too deep to print."""
    if expression is None or expression.end_lineno != expression.lineno or expression.end_col_offset is None:
        return ""
    return ast.unparse(expression) if expression.end_col_offset - expression.col_offset <= MAX_EXPRESSION else ""


@functools.cache
def _steps_by_expression() -> dict[str, Step]:
    parsed = ((step, python_syntax.parse(step.code).body[0]) for step in ALL_STEPS)
    return {ast.unparse(line.value): step for step, line in parsed if isinstance(line, ast.Assign)}


def _replay(steps: Sequence[Step | None], x: int) -> list[int]:
    """The values of x as far as the steps are known and stay small; the input first."""
    values = [x]
    for step in steps:
        if step is None:
            break
        value = step.apply(values[-1])
        if abs(value) > REPLAY_LIMIT:
            break
        values.append(value)
    return values


def first_wrong_step(intended: Program, response_text: str, x: int) -> int | None:
    """Number (from 1) of the first step after which the answer's x is not what it should be on input x, or is unknown.
    `len(intended) + 1`: all steps are right and something follows. None: no step is to blame."""
    steps, _ = recognised_steps(response_text)
    wanted, made = run_steps(intended, x), _replay(steps, x)
    for i in range(1, len(wanted)):
        if i >= len(made) or made[i] != wanted[i]:
            return i
    return len(wanted) if len(steps) > len(intended) else None


def _most_telling(prompt: Prompt, response_text: str, failing: Sequence[int]) -> int:
    """The failing case whose first wrong step comes earliest, then the one with the shortest input."""
    cases = prompt.ground_truth["cases"]
    intended = _intended(prompt)

    def rank(i: int) -> tuple[int, int, int]:
        step = first_wrong_step(intended, response_text, cases[i]["args"][0]) if intended else None
        return (step or len(intended) + 2, len(str(cases[i]["args"])), i)

    return min(failing, key=rank)


def _intended(prompt: Prompt) -> Program:
    return steps_of(prompt) if "steps" in prompt.ground_truth else ()


def _feedback(prompt: Prompt, response_text: str, told: int, outcome: TestOutcome) -> str:
    lines = [HEADINGS[outcome.status], f"Input: {outcome.input}", f"Expected: {outcome.expected}"]
    lines.append(f"Error: {outcome.error}" if outcome.error else f"Got: {outcome.got}")
    lines.append(_step_hint(_intended(prompt), response_text, prompt.ground_truth["cases"][told]["args"][0]))
    return "\n".join(line for line in lines if line)


def _hint(prompt: Prompt, response_text: str) -> str:
    """What the first wrong step should have been, on the input where that shows earliest."""
    cases = prompt.ground_truth["cases"]
    told = _most_telling(prompt, response_text, range(len(cases)))
    return _step_hint(_intended(prompt), response_text, cases[told]["args"][0])


def _step_hint(intended: Program, response_text: str, x: int) -> str:
    number = first_wrong_step(intended, response_text, x) if intended else None
    if number is None:
        return ""
    if number > len(intended):
        return f"Nothing should follow step {len(intended)}"
    steps, returned = recognised_steps(response_text)
    wanted, made = run_steps(intended, x), _replay(steps, x)
    change = f"It makes {_short(wanted[number - 1])} into {_short(wanted[number])}"
    hint = f"Step {number} should be: {intended[number - 1].phrase}\n{change}"
    if number < len(made):
        return f"{hint}, yours made {_short(made[number])}"
    return f"{hint}, yours stopped" if returned and len(steps) < number else hint


def _outcome(case: dict[str, Any], run: FunctionRun) -> TestOutcome:
    expected = case["expected"]
    # True == 1 and 3.0 == 3 in Python; neither is the integer that was asked for.
    right = run.status is GradeStatus.OK and type(run.value) is type(expected) and run.value == expected
    status = run.status if run.status is not GradeStatus.OK else (GradeStatus.OK if right else GradeStatus.WRONG)
    shown = ", ".join(_short(value) for value in case["args"])
    return TestOutcome(
        status=status, input=shown, expected=_short(expected), got=_short(run.value), error=run.error, hidden=True
    )


def _short(value: Any) -> str:
    text = show(value)
    return text if len(text) <= MAX_VALUE or text == TOO_LONG else text[:MAX_VALUE] + "..."


def _failure(status: GradeStatus, message: str, hint: str = "") -> Grade:
    return Grade(status, reward=0.0, feedback=f"{message}\n{hint}" if hint else message)
