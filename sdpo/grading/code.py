"""Code problems: runs the program of a response against the row's tests and compares outside the sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from sdpo.errors import DataError
from sdpo.records import Grade, GradeStatus, Prompt, TestOutcome
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import AssertCase, AssertOutcome, Fault, FunctionOutcome, ProgramOutcome

from .code_tests import (
    AssertTests,
    CodeTests,
    FunctionCase,
    FunctionTests,
    StdinCase,
    StdinTests,
    read_limits,
    read_tests,
)
from .compare import outputs_equal, values_equal
from .extract import extract_code
from .feedback import FeedbackOptions, show
from .result import failed, from_tests, ungraded

Case = TypeVar("Case", FunctionCase, StdinCase)
WEAK = "integrity: weak"  # flag of a grade: the program took part in the comparison
STOPPING = frozenset({GradeStatus.TIMEOUT, GradeStatus.OUTPUT_LIMIT, GradeStatus.MEMORY_LIMIT})
NO_BLOCK = (
    "No complete code block was found in the response. "
    "Put the whole program in one fenced block that starts with ```python."
)
WEAK_FEEDBACK = (
    "The program decides its own tests{}. Return plain built-in values, and leave the arguments of a function that "
    "returns something as they are."
)
CUT_OFF = "The response was cut off before its code block was complete."


class CodeRunner(Protocol):
    """What runs programs: the local sandbox, or a remote service. Every method raises SandboxFault when it cannot."""

    def run_program(
        self, source: str, stdin: bytes, limits: Limits, output_cap: int | None = None
    ) -> ProgramOutcome: ...

    def run_function(
        self, source: str, name: str, inputs: Any, limits: Limits, *, answer_sizes: Any = None
    ) -> list[FunctionOutcome]: ...

    def run_assert(
        self, source: str, code: str, entry_point: str | None, limits: Limits, *, prompt: str = ""
    ) -> AssertOutcome: ...


class CodeGrader:
    """`flags` go on every grade, e.g. a warning that the sandbox is unsafe."""

    def __init__(self, runner: CodeRunner, limits: Limits, options: FeedbackOptions, fail_weak: bool = False) -> None:
        self.runner = runner
        self.limits = limits
        self.options = options
        self.fail_weak = fail_weak

    def check(self, prompt: Prompt) -> str | None:
        try:
            tests = read_tests(prompt.ground_truth)
            read_limits(prompt.ground_truth, self.limits)
        except DataError as error:
            return str(error)
        return None if tests else "no tests"

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        try:
            tests = read_tests(prompt.ground_truth)
            limits = read_limits(prompt.ground_truth, self.limits)
        except DataError as error:
            return ungraded(GradeStatus.INVALID_GOLD, str(error))
        if tests is None:
            return ungraded(GradeStatus.NO_TESTS)
        source = extract_code(answer, truncated)
        if source is None:
            return failed(GradeStatus.TRUNCATED, CUT_OFF) if truncated else failed(GradeStatus.FORMAT_ERROR, NO_BLOCK)
        return self.grade_source(source, tests, limits, text_of(prompt))

    def grade_source(self, source: str, tests: CodeTests, limits: Limits, prompt: str = "") -> Grade:
        """`prompt`: its text, "" when it is not known. Raises SandboxFault when the program could not be run."""
        if isinstance(tests, FunctionTests):

            def calls(cases: Sequence[FunctionCase]) -> list[TestOutcome]:
                return self._function(source, tests.name, cases, limits)

            return from_tests(self._apart(tests.cases, calls), self.options)
        if isinstance(tests, StdinTests):
            return from_tests(self._apart(tests.cases, lambda cases: self._stdin(source, cases, limits)), self.options)
        return self._assert(source, tests, limits, prompt)

    def _apart(self, cases: Sequence[Case], run: Callable[[Sequence[Case]], list[TestOutcome]]) -> list[TestOutcome]:
        """Where the feedback may only speak of public tests, the hidden ones run after them and in processes of their
        own: a program could keep a hidden input and show it as its answer to the next public one."""
        if not self.options.public_only:
            return run(cases)
        parts = {hidden: [case for case in cases if case.hidden is hidden] for hidden in (False, True)}
        outcomes = {hidden: iter(run(part) if part else []) for hidden, part in parts.items()}
        return [next(outcomes[case.hidden]) for case in cases]

    def _function(self, source: str, name: str, cases: Sequence[FunctionCase], limits: Limits) -> list[TestOutcome]:
        inputs = [case.args for case in cases]
        sizes = [case.answer_bytes for case in cases]
        outcomes = self.runner.run_function(source, name, inputs, limits, answer_sizes=sizes)
        results = []
        for case, outcome in zip(cases, outcomes, strict=True):
            status = outcome.status
            if status is GradeStatus.OK and not values_equal(outcome.value, case.expected):
                status = GradeStatus.WRONG
            results.append(
                TestOutcome(
                    status,
                    input=f"{name}({', '.join(map(show, case.args))})",
                    expected=show(case.expected),
                    got=show(outcome.value) if outcome.status is GradeStatus.OK else "",
                    error=error_text(outcome.fault, outcome.detail),
                    seconds=outcome.seconds,
                    hidden=case.hidden,
                )
            )
        return results

    def _stdin(self, source: str, cases: Sequence[StdinCase], limits: Limits) -> list[TestOutcome]:
        """One run per test, until one breaks a limit: the tests after it would only cost time, and count as failed
        with it."""
        results: list[TestOutcome] = []
        idle = 0.0
        for case in cases:
            if results and results[-1].status in STOPPING:
                results.append(
                    TestOutcome(results[-1].status, case.input, case.output, error="not run", hidden=case.hidden)
                )
                continue
            cap = (limits.output_kb << 10) + 2 * len(case.output.encode("utf-8", "surrogatepass"))
            outcome = self.runner.run_program(source, case.input.encode("utf-8", "surrogatepass"), limits, cap)
            idle += outcome.idle_s
            if idle > limits.idle_s(len(cases)):
                outcome = replace(outcome, status=GradeStatus.TIMEOUT, detail=f"{idle:.1f} s asleep")
            results.append(stdin_outcome(case, outcome))
        return results

    def _assert(self, source: str, tests: AssertTests, limits: Limits, prompt: str) -> Grade:
        results: list[TestOutcome] = []
        weak, why = False, ""
        for code, hidden in ((tests.code, False), (tests.hidden_code, True)):
            if not code:
                continue
            outcome = self.runner.run_assert(source, code, tests.entry_point, limits, prompt=prompt)
            unusable = next((case for case in outcome.cases if case.status is GradeStatus.INVALID_GOLD), None)
            if unusable is not None:
                return ungraded(GradeStatus.INVALID_GOLD, f"the tests cannot run here: {unusable.detail}")
            results += [assert_outcome(case, outcome.seconds, hidden) for case in outcome.cases]
            weak, why = weak or outcome.weak, why or ("" if hidden else outcome.why)
        flags = (WEAK,) if weak else ()
        if weak and self.fail_weak and all(result.status is GradeStatus.OK for result in results):
            return failed(GradeStatus.WRONG, WEAK_FEEDBACK.format(f": {why}" if why else ""), flags)
        return from_tests(results, self.options, flags)


def text_of(prompt: Prompt) -> str:
    """All text of its messages."""
    contents = [message.get("content") for message in prompt.messages]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    return "\n".join(part if isinstance(part, str) else str(part.get("text", "")) for part in parts if part)


def assert_outcome(case: AssertCase, seconds: float, hidden: bool) -> TestOutcome:
    """`error` holds the whole text of a failed assert; there is no separate input."""
    if case.status is not GradeStatus.WRONG:
        error = "" if case.status is GradeStatus.OK else error_text(case.fault, case.detail)
        return TestOutcome(case.status, input=case.statement, error=error, seconds=seconds, hidden=hidden)
    sides = (
        f"\nleft: {case.left}\nright: {case.right}"
        if case.left or case.right
        else f"\n{case.detail}"
        if case.detail
        else ""
    )
    text = f"Assertion failed: {case.statement}{sides}"
    return TestOutcome(case.status, expected=case.right, got=case.left, error=text, seconds=seconds, hidden=hidden)


def stdin_outcome(case: StdinCase, outcome: ProgramOutcome) -> TestOutcome:
    got = outcome.stdout.decode("utf-8", "replace")
    status = outcome.status
    if status is GradeStatus.OK and not outputs_equal(got, case.output):
        status = GradeStatus.WRONG
    detail = outcome.detail
    if status is GradeStatus.RUNTIME_ERROR and outcome.fault is None:
        detail = f"The program ended with {detail}"
    error = "" if status in (GradeStatus.OK, GradeStatus.WRONG) else error_text(outcome.fault, detail)
    return TestOutcome(status, case.input, case.output, got, error, outcome.wall_s, case.hidden)


def error_text(fault: Fault | None, detail: str) -> str:
    """The exception, then the program's own frames with their source lines, innermost last."""
    if fault is None:
        return detail
    lines = [f"{fault.type}: {fault.message}" if fault.message else fault.type]
    lines += [f"line {line}, in {function}: {source}" if line else source for line, function, source in fault.frames]
    return "\n".join(lines)
