"""What a grader is."""

from __future__ import annotations

from typing import Protocol

from sdpo.records import Grade, Prompt


class KindGrader(Protocol):
    """Grades one kind of problem. Thread-safe.

    `grade` gets the response without its thinking. It may raise SandboxFault or AlgebraFault when the grader itself
    failed; the registry turns that into a GradingError.
    """

    def check(self, prompt: Prompt) -> str | None:
        """Why the row cannot be graded, None when it can."""

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade: ...


class Grader(Protocol):
    """What the training loop sees. Thread-safe and blocking; usable from threads, Ray actors and
    `asyncio.to_thread`."""

    def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        """The verdict. Raises GradingError when the grader itself failed beyond its retries; DataError for an unknown
        source."""

    def metrics(self) -> dict[str, float]:
        """Counters since the start, named `grading/...`."""

    def close(self) -> None: ...
