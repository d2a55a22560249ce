"""From a row's `data_source` to its grader, and from the configuration to one object that grades everything."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from sdpo.config.schema import Config, GradingConfig
from sdpo.errors import ConfigError, DataError, problem
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.report import SandboxReport
from sdpo.sandbox.sandbox import Sandbox, SandboxOptions

from .backends.http import HttpRunner
from .backends.modal import ModalRunner
from .backends.retry import Retry
from .base import Grader, KindGrader
from .call_formats import CallReader
from .code import CodeGrader
from .custom import CustomGrader, load_function
from .feedback import FeedbackOptions
from .judge_model import JudgeModelGrader
from .math_pool import AlgebraPool
from .mathematics import MathGrader
from .multiple_choice import MultipleChoiceGrader
from .source_grader import Lazy, SourceGrader
from .text_match import TextGrader
from .tool_calls import ToolCallGrader

# Patterns of `data_source` -> grader; the first match wins.
KINDS: tuple[tuple[str, str], ...] = (
    ("programs*", "programs"),
    ("gsm8k*", "math"),
    ("math*", "math"),
    ("aime*", "math"),
    ("sciknoweval*", "multiple_choice"),
    ("gpqa*", "multiple_choice"),
    ("mmlu*", "multiple_choice"),
    ("multiple_choice*", "multiple_choice"),
    ("humaneval*", "code"),
    ("mbpp*", "code"),
    ("livecodebench*", "code"),
    ("kodcode*", "code"),
    ("code*", "code"),
    ("tooluse*", "tool_calls"),
    ("tool_calls*", "tool_calls"),
    ("exact*", "text"),
    ("regex*", "text"),
    ("judge*", "judge"),
)
EMBEDDED = "sdpo.embedded.grader"  # a task that comes with the package, known by name only
RUN_PROGRAMS = ("programs", "code")  # the graders that need a sandbox
ALGEBRA_SECONDS = 5.0


def kind_of(data_source: str) -> str:
    """Name of the grader. DataError for a source that nobody grades."""
    for pattern, kind in KINDS:
        if fnmatch.fnmatchcase(data_source.lower(), pattern):
            return kind
    known = ", ".join(pattern for pattern, _ in KINDS)
    raise DataError(problem("data_source", data_source, known, "or name a function with custom_reward_function.path"))


def build_grader(config: Config) -> Grader:
    """The grader of a run. Parts that cost start-up time (sandbox, algebra) start when first used, which may raise
    SandboxUnavailable; ConfigError at once for settings that cannot be."""
    return build_source_grader(config)


def build_source_grader(config: Config) -> SourceGrader:
    grading = config.grading
    options = feedback_options(grading)
    runner = Lazy(lambda: build_runner(grading))
    custom = config.custom_reward_function
    if custom.path is not None:
        function = load_function(custom.path, custom.name)
        return SourceGrader(
            lambda _: "custom",
            {"custom": lambda: CustomGrader(function, options)},
            runner,
            (),
            grading.reasoning_parser,
        )
    limits = Limits(grading.cpu_seconds, grading.memory_mb, grading.max_output_kb)
    algebra = AlgebraPool(grading.algebra_processes, ALGEBRA_SECONDS)
    calls = CallReader(grading.tool_parser)
    makers: dict[str, Callable[[], KindGrader]] = {
        "code": lambda: CodeGrader(LazyRunner(runner), limits, options, grading.fail_weak),
        "math": lambda: MathGrader(algebra, grading.reveal_gold),
        "multiple_choice": lambda: MultipleChoiceGrader(grading.answer_tags_required, grading.reveal_gold),
        "tool_calls": lambda: ToolCallGrader(grading.reveal_gold, calls),
        "text": lambda: TextGrader(),
        "programs": lambda: import_module(EMBEDDED).ProgramsKind(LazyRunner(runner), limits, options),
        "judge": lambda: build_judge(grading, options),
    }
    return SourceGrader(kind_of, makers, runner, (algebra.close, calls.close), grading.reasoning_parser)


def feedback_options(grading: GradingConfig) -> FeedbackOptions:
    return FeedbackOptions(
        style=grading.feedback_style,
        max_chars=grading.feedback_max_chars,
        public_only=grading.public_only,
        template=grading.feedback_template,
    )


def build_runner(grading: GradingConfig) -> Any:
    """Where programs run, by `grading.backend`."""
    if grading.backend == "http":
        if not grading.service_url:
            raise ConfigError(
                problem("grading.service_url", None, "the address of the service", "needed by grading.backend=http")
            )
        return HttpRunner(grading.service_url, Retry(grading.retries))
    if grading.backend == "modal":
        return ModalRunner(Retry(grading.retries))
    return Sandbox(
        SandboxOptions(
            ceiling=grading.sandbox_level,
            concurrency=grading.concurrency,
            retries=grading.retries,
            packages=tuple(grading.packages),
            allow_unsafe=grading.allow_unsafe,
        )
    )


def build_judge(grading: GradingConfig, options: FeedbackOptions) -> JudgeModelGrader:
    if not grading.judge_url or not grading.judge_model:
        given = {"judge_url": grading.judge_url, "judge_model": grading.judge_model}
        raise ConfigError(problem("grading", given, "both set", "rows with data_source judge need them"))
    return JudgeModelGrader(
        grading.judge_url, grading.judge_model, Retry(grading.retries), options, key_variable=grading.judge_key_variable
    )


class LazyRunner:
    """A runner that starts with its first program, so that checking rows starts none."""

    def __init__(self, runner: Lazy) -> None:
        self._runner = runner

    def run_program(self, *args: Any, **kwargs: Any) -> Any:
        return self._runner.get().run_program(*args, **kwargs)

    def run_function(self, *args: Any, **kwargs: Any) -> Any:
        return self._runner.get().run_function(*args, **kwargs)

    def run_assert(self, *args: Any, **kwargs: Any) -> Any:
        return self._runner.get().run_assert(*args, **kwargs)


def describe_sandbox(config: Config, sources: Iterable[str]) -> SandboxReport | None:
    """Starts the local sandbox, tests it, and returns its report for the run's metadata; None where rows of these
    sources run no programs, or not here. Raises SandboxUnavailable. Called before training, so that a machine without
    isolation is found before a model is loaded."""
    if config.grading.backend != "local" or config.custom_reward_function.path is not None:
        return None
    if not any(kind_of(source) in RUN_PROGRAMS for source in sources):
        return None
    with build_runner(config.grading) as sandbox:
        return sandbox.report
