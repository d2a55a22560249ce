"""Grading while generation goes on: a pool that takes each response as it finishes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from sdpo.config.schema import Config
from sdpo.errors import GradingError
from sdpo.grading.registry import Grader, build_grader
from sdpo.records import Grade, GradeStatus, Prompt


class GraderPool(Protocol):
    def submit(self, prompt: Prompt, response_text: str, truncated: bool) -> Callable[[], Grade]:
        """Starts grading; the returned function waits for the verdict."""

    def close(self) -> None: ...


def grade_or_infra_error(grader: Grader, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
    """A grader that failed for good is a status of its own, never a wrong answer; the loop decides when to stop."""
    try:
        return grader.grade(prompt, response_text, truncated)
    except GradingError as error:
        return Grade(GradeStatus.INFRA_ERROR, reward=None, flags=(f"grader: {error}",))


def grading_of(config: Config) -> str:
    """In words, who decides: for messages about a grader that does not work."""
    custom = config.custom_reward_function
    if custom.path is not None:
        return f"custom_reward_function {custom.name} of {custom.path}"
    return f"grading.backend={config.grading.backend}"


class ThreadGraderPool:
    """Grades on threads of this process (the model's code still runs in the sandbox, never here)."""

    def __init__(self, config: Config) -> None:
        self._grader = build_grader(config)
        self._threads = ThreadPoolExecutor(config.grading.workers, thread_name_prefix="grader")

    def submit(self, prompt: Prompt, response_text: str, truncated: bool) -> Callable[[], Grade]:
        return self._threads.submit(grade_or_infra_error, self._grader, prompt, response_text, truncated).result

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._grader.close()
