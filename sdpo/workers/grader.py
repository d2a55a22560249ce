"""Grading while generation goes on: a pool that takes each response as it finishes."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from sdpo.config.schema import Config
from sdpo.errors import GradingError
from sdpo.grading.registry import Grader, build_grader
from sdpo.records import Grade, GradeStatus, Prompt


class GraderPool(Protocol):
    async def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        """The verdict; infra_error when the grader failed for good."""

    def metrics(self) -> dict[str, float]:
        """`grade/*`: speed and queue since the last call, faults of the sandbox since the start."""

    def close(self) -> None: ...


class GradingMeter:
    """Counts responses on their way through the graders. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = self._most = self._done = 0
        self._busy, self._since = 0.0, time.monotonic()

    def begin(self) -> None:
        with self._lock:
            self._tick()
            self._inside += 1
            self._most = max(self._most, self._inside)

    def end(self, *_: object) -> None:
        with self._lock:
            self._tick()
            self._inside -= 1
            self._done += 1

    def _tick(self) -> None:
        now = time.monotonic()
        self._busy += (now - self._since) if self._inside else 0.0
        self._since = now

    def take(self) -> dict[str, float]:
        with self._lock:
            self._tick()
            result = {"grade/queue_depth": float(self._most)}
            if self._done and self._busy:
                result["grade/responses_per_s"] = self._done / self._busy
            self._most, self._done, self._busy = self._inside, 0, 0.0
        return result


def sandbox_faults(grader: Grader) -> dict[str, float]:
    """Runs that had to be repeated, and fork servers that died, since the grader began."""
    counts = grader.metrics()
    names = {"grade/sandbox_retries": "grading/sandbox_retries", "grade/servers_died": "grading/sandbox_servers_died"}
    return {name: counts[inner] for name, inner in names.items() if inner in counts}


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
        self._meter = GradingMeter()

    async def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        self._meter.begin()
        future = self._threads.submit(grade_or_infra_error, self._grader, prompt, response_text, truncated)
        future.add_done_callback(self._meter.end)
        return await asyncio.wrap_future(future)

    def metrics(self) -> dict[str, float]:
        return self._meter.take() | sandbox_faults(self._grader)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._grader.close()
