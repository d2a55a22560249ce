"""One object that grades rows of every source: finds the grader, strips the thinking, shares identical work, keeps
count."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sdpo.errors import GradingError, SdpoError
from sdpo.records import Grade, GradeStatus, Prompt
from sdpo.sandbox.inside.frames import encode
from sdpo.sandbox.outcome import SandboxFault
from sdpo.tokens.think import strip_think

from .base import KindGrader
from .judge_model import JudgeFault
from .math_pool import AlgebraFault
from .once import Once
from .result import ungraded
from .user_calls import CustomFault

KEPT_GRADES = 4096
SUMMARY_EVERY = 64  # grades
logger = logging.getLogger(__name__)
GRADER_FAULTS = (SandboxFault, AlgebraFault, CustomFault, JudgeFault)
UNSAFE = "unsafe sandbox"  # flag of every grade made without isolation


class Lazy:
    """Makes an expensive object once, on first use, from any thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.value: Any = None
        self._lock = threading.Lock()
        self._closed = False

    def get(self) -> Any:
        """Raises SandboxFault when it is closed: nobody would close what was made then."""
        with self._lock:
            if self._closed:
                raise SandboxFault("the grader is closed")
            if self.value is None:
                self.value = self._make()
            return self.value

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self.value is not None:
                self.value.close()


class SourceGrader:
    """`kind_of(data_source)` names an entry of `makers`; each grader is made when first needed. Thread-safe.

    `runner`: where programs run; its report goes into the run's metadata. `reasoning_parser`: see `strip_think`.
    """

    def __init__(
        self,
        kind_of: Callable[[str], str],
        makers: Mapping[str, Callable[[], KindGrader]],
        runner: Lazy,
        closers: tuple[Callable[[], None], ...] = (),
        reasoning_parser: str = "auto",
    ) -> None:
        self.kind_of = kind_of
        self.reasoning_parser = reasoning_parser
        self.runner = runner
        self._graders = {kind: Lazy(make) for kind, make in makers.items()}
        self._closers = (runner.close, *closers)
        self._once: Once[Grade] = Once(KEPT_GRADES)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def grade(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        """Raises GradingError when the grader itself failed beyond its retries; DataError for an unknown source."""
        grade = self.grade_or_status(prompt, response_text, truncated)
        if grade.status is GradeStatus.INFRA_ERROR:
            raise GradingError(f"grading {prompt.data_source}: {'; '.join(grade.flags)}")
        return grade

    def grade_or_status(self, prompt: Prompt, response_text: str, truncated: bool) -> Grade:
        """Like `grade`, but a failure of the grader is a grade with status infra_error."""
        start = time.monotonic()
        grader: KindGrader = self._graders[self.kind_of(prompt.data_source)].get()
        answer = strip_think(response_text, parser=self.reasoning_parser)
        key = fingerprint(prompt, answer, truncated)
        made = self._once.get(
            key, lambda: grade_once(grader, prompt, answer, truncated), keep=lambda grade: grade.graded
        )
        flags = made.flags + (("truncated",) if truncated else ()) + ((UNSAFE,) if self._unsafe() else ())
        result = replace(made, seconds=time.monotonic() - start, flags=flags)
        with self._lock:
            self._counts[str(result.status)] += 1
            batch_is_full = sum(self._counts.values()) % SUMMARY_EVERY == 0
        if batch_is_full:
            self.log_summaries()
        return result

    def log_summaries(self) -> None:
        """One line for each remote service: attempts, retries, recovered and failed since the last line."""
        for part in (self.runner.value, *(grader.value for grader in self._graders.values())):
            if hasattr(part, "summary"):
                logger.info(part.summary())

    def _unsafe(self) -> bool:
        report = getattr(self.runner.value, "report", None)
        return bool(report is not None and report.unsafe)

    def check(self, prompt: Prompt) -> str | None:
        """Why a row cannot be graded; None when it can. Starts no sandbox for code rows."""
        return self._graders[self.kind_of(prompt.data_source)].get().check(prompt)

    def metrics(self) -> dict[str, float]:
        """Totals since the start: grades by status, shared grades, and what the sandbox's servers count."""
        with self._lock:
            values = {f"grading/{status}": float(count) for status, count in self._counts.items()}
        values["grading/shared"] = float(self._once.hits)
        pool = getattr(self.runner.value, "pool", None)
        if pool is not None:
            values |= {f"grading/sandbox_{name}": float(count) for name, count in pool.counters.items()}
        return values

    def close(self) -> None:
        self.log_summaries()
        for closer in self._closers:
            closer()


def grade_once(grader: KindGrader, prompt: Prompt, answer: str, truncated: bool) -> Grade:
    try:
        return grader.grade(prompt, answer, truncated)
    except GRADER_FAULTS as error:
        return ungraded(GradeStatus.INFRA_ERROR, str(error))
    except SdpoError:  # what a user has to change, told by its own line
        raise
    except Exception as error:  # a fault in a grader costs the answer that shows it, and not the run around it
        logger.exception("grading %s failed", prompt.data_source)
        return ungraded(GradeStatus.INFRA_ERROR, f"{type(error).__name__}: {error}"[:500])


def fingerprint(prompt: Prompt, answer: str, truncated: bool) -> bytes:
    """Everything a verdict depends on."""
    parts = [
        prompt.data_source,
        prompt.ground_truth,
        prompt.extra_info,
        prompt.tools,
        prompt.messages,
        answer,
        truncated,
    ]
    try:
        text = json.dumps(parts, sort_keys=True, default=repr)
    except ValueError:  # an integer of thousands of digits
        text = json.dumps(encode(parts))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
