"""From a row's `data_source` to its grader, and from the configuration to one object that grades everything."""

from __future__ import annotations

import fnmatch
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sdpo.config.schema import Config
from sdpo.errors import DataError, GradingError, problem
from sdpo.records import Grade, GradeStatus, Prompt
from sdpo.tokens.think import strip_think

from .base import Grader, KindGrader
from .code import CodeGrader, error_text
from .feedback import FeedbackOptions
from .math_pool import AlgebraFault, AlgebraPool
from .mathematics import MathGrader
from .multiple_choice import MultipleChoiceGrader
from .programs import FunctionRun, ProgramsGrader
from .result import ungraded
from .sandbox.limits import Limits
from .sandbox.outcome import SandboxFault
from .sandbox.sandbox import Sandbox, SandboxOptions

logger = logging.getLogger(__name__)

# Patterns of `data_source`, first match wins.
KINDS: tuple[tuple[str, str], ...] = (
    ("programs", "programs"),
    ("gsm8k", "math"),
    ("math*", "math"),
    ("sciknoweval", "multiple_choice"),
    ("gpqa*", "multiple_choice"),
    ("mmlu*", "multiple_choice"),
    ("multiple_choice", "multiple_choice"),
    ("humaneval*", "code"),
    ("mbpp*", "code"),
    ("livecodebench*", "code"),
    ("kodcode*", "code"),
    ("code*", "code"),
)
ALGEBRA_SECONDS = 5.0


def kind_of(data_source: str) -> str:
    """Name of the grader. DataError for a source nobody grades."""
    for pattern, kind in KINDS:
        if fnmatch.fnmatchcase(data_source.lower(), pattern):
            return kind
    known = ", ".join(pattern for pattern, _ in KINDS)
    raise DataError(problem("data_source", data_source, known, "or set custom_reward_function.path"))


class SourceGrader:
    """Grades any known source; the graders behind it are made when first needed."""

    def __init__(self, config: Config, makers: dict[str, Callable[[], KindGrader]], closers: list[Callable[[], None]]) -> None:
        self.config = config
        self._makers = makers
        self._graders: dict[str, KindGrader] = {}
        self._closers = closers
        self._lock = threading.Lock()

    def grader_for(self, data_source: str) -> KindGrader:
        kind = kind_of(data_source)
        with self._lock:
            if kind not in self._graders:
                self._graders[kind] = self._makers[kind]()
            return self._graders[kind]

    def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        grade = self.grade_or_status(prompt, response_text, truncated)
        if grade.status is GradeStatus.INFRA_ERROR:
            raise GradingError(f"grading {prompt.data_source}: {'; '.join(grade.flags)}")
        return grade

    def grade_or_status(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        """Like `grade`, but a failure of the grader is a grade with status infra_error."""
        start = time.monotonic()
        grader = self.grader_for(prompt.data_source)
        answer = strip_think(response_text)
        try:
            grade = grader.grade(prompt, answer, truncated)
        except (SandboxFault, AlgebraFault) as error:
            grade = ungraded(GradeStatus.INFRA_ERROR, str(error))
        flags = (*grade.flags, "truncated") if truncated else grade.flags
        return replace(grade, seconds=time.monotonic() - start, flags=flags)

    def check(self, prompt: Prompt) -> str | None:
        return self.grader_for(prompt.data_source).check(prompt)

    def close(self) -> None:
        for closer in self._closers:
            closer()


def build_grader(config: Config) -> Grader:
    """The grader of a run. Raises SandboxUnavailable or ConfigError; heavy parts start when first used."""
    return build_source_grader(config)


def build_source_grader(config: Config) -> SourceGrader:
    grading = config.grading
    limits = Limits(grading.cpu_seconds, grading.memory_mb, grading.max_output_kb)
    options = FeedbackOptions(grading.feedback_style, grading.feedback_max_chars, grading.public_only)
    sandbox = Lazy(lambda: Sandbox(SandboxOptions(retries=grading.retries)))
    algebra = AlgebraPool(1, ALGEBRA_SECONDS)
    makers: dict[str, Callable[[], KindGrader]] = {
        "code": lambda: CodeGrader(sandbox.get(), limits, options),
        "math": lambda: MathGrader(algebra, grading.reveal_gold),
        "multiple_choice": lambda: MultipleChoiceGrader(reveal_gold=grading.reveal_gold),
        "programs": lambda: ProgramsKind(sandbox.get(), limits, grading.public_only, grading.feedback_max_chars),
    }
    return SourceGrader(config, makers, [sandbox.close, algebra.close])


class Lazy:
    """Makes an expensive object once, on first use, from any thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._value: Any = None
        self._lock = threading.Lock()

    def get(self) -> Any:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value

    def close(self) -> None:
        with self._lock:
            if self._value is not None:
                self._value.close()


class ProgramsKind:
    """The built-in task's grader on the sandbox."""

    def __init__(self, sandbox: Sandbox, limits: Limits, public_only: bool, max_chars: int) -> None:
        def run(source: str, name: str, inputs: list[list[Any]]) -> list[FunctionRun]:
            outcomes = sandbox.run_function(source, name, inputs, limits)
            return [FunctionRun(o.value, error_text(o.fault, o.detail).split("\n")[0], o.status) for o in outcomes]

        self._grader = ProgramsGrader(run, public_only, max_chars)

    def check(self, prompt: Prompt) -> str | None:
        truth = prompt.ground_truth
        return None if isinstance(truth, dict) and truth.get("cases") else "no tests"

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        return self._grader.grade(prompt, answer, truncated)


def check_rows(prompts: Sequence[Prompt], config: Config) -> list[tuple[str, str]]:
    """(uid, reason) of the rows that cannot be graded; they get status invalid_gold or no_tests and never enter the loss.

    Raises DataError for an unknown source, and when no row at all can be graded.
    """
    grader = build_source_grader(config)
    try:
        bad = [(prompt.uid, reason) for prompt in prompts if (reason := grader.check(prompt))]
    finally:
        grader.close()
    if prompts and len(bad) == len(prompts):
        raise DataError(f"row {bad[0][0]}: {bad[0][1]}; none of the {len(prompts)} rows can be graded")
    if bad:
        logger.warning("%d of %d rows cannot be graded, e.g. %s: %s", len(bad), len(prompts), *bad[0])
    return bad
