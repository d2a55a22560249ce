"""From a row's `data_source` to its grader, and from the configuration to one object that grades everything."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

from sdpo.config.schema import Config, CustomRewardFunctionConfig, GradingConfig
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
from .custom import CustomGrader, load_calls
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
    ("amc*", "math"),
    ("numina*", "math"),
    ("dapo*", "math"),
    ("deepscaler*", "math"),
    ("olympiad*", "math"),
    ("minerva*", "math"),
    ("sciknoweval*", "multiple_choice"),
    ("gpqa*", "multiple_choice"),
    ("mmlu*", "multiple_choice"),
    ("multiple_choice*", "multiple_choice"),
    ("humaneval*", "code"),
    ("mbpp*", "code"),
    ("livecodebench*", "code"),
    ("kodcode*", "code"),
    ("code*", "code"),
    ("apps", "code"),
    ("taco", "code"),
    ("tooluse*", "tool_calls"),
    ("tool_calls*", "tool_calls"),
    ("exact*", "text"),
    ("regex*", "text"),
    ("searchr1_*", "text"),
    ("judge*", "judge"),
)
EMBEDDED = "sdpo.embedded.grader"  # a task that comes with the package, known by name only
CUSTOM = "custom"  # the user's own function
RUN_PROGRAMS = ("programs", "code")  # the graders that need a sandbox
ALGEBRA_SECONDS = 5.0


def matches(data_source: str, pattern: str) -> bool:
    """Whatever the case; a hub id by its name too: openai/gsm8k is gsm8k."""
    whole = data_source.lower()
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for name in (whole, whole.rpartition("/")[2]))


def kind_of(data_source: str) -> str:
    """Name of the grader. DataError for a source that nobody grades."""
    for pattern, kind in KINDS:
        if matches(data_source, pattern):
            return kind
    known = ", ".join(pattern for pattern, _ in KINDS)
    raise DataError(problem("data_source", data_source, known, "or name a function with custom_reward_function.path"))


def build_grader(config: Config) -> Grader:
    """The grader of a run. Parts that cost start-up time (sandbox, algebra) start when first used, which may raise
    SandboxUnavailable; ConfigError at once for settings that cannot be."""
    return build_source_grader(config)


def build_source_grader(config: Config, strict: bool = False) -> SourceGrader:
    """`strict`: a reward function of the user's that changes its row is at fault, too."""
    grading = config.grading
    options = feedback_options(grading)
    runner = Lazy(lambda: build_runner(grading))
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
    closers: tuple[Callable[[], None], ...] = (algebra.close, calls.close)
    custom = config.custom_reward_function
    if custom.path is not None:
        grader = CustomGrader(load_calls(custom, strict), custom.weights, options)
        makers[CUSTOM] = lambda: grader
        closers = (*closers, grader.close)
    return SourceGrader(partial(grader_kind, custom), makers, runner, closers, grading.reasoning_parser)


def grader_kind(custom: CustomRewardFunctionConfig, data_source: str) -> str:
    """`kind_of`, and CUSTOM for what the user's function grades."""
    patterns = custom.data_sources or ["*"]
    if custom.path is not None and any(matches(data_source, pattern) for pattern in patterns):
        return CUSTOM
    return kind_of(data_source)


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
    if config.grading.backend != "local":
        return None
    if not any(grader_kind(config.custom_reward_function, source) in RUN_PROGRAMS for source in sources):
        return None
    with build_runner(config.grading) as sandbox:
        return sandbox.report
