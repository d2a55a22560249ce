"""Bounded retries with backoff and jitter, for faults of the transport only, and what they added up to."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class TransportFault(Exception):
    """The request did not get a usable answer: connection, status 429 or 5xx, time-out, unreadable body."""


@dataclass
class Tally:
    """Counts since the last summary."""

    attempts: int = 0
    retries: int = 0
    recovered: int = 0
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def take(self) -> dict[str, int]:
        with self._lock:
            counts = {name: getattr(self, name) for name in ("attempts", "retries", "recovered", "failed")}
            self.attempts = self.retries = self.recovered = self.failed = 0
        return counts


@dataclass(frozen=True)
class Retry:
    """`first_pause` seconds, doubled each time up to `longest_pause`, each times a random factor in [0.5, 1.5]."""

    retries: int
    first_pause: float = 0.2
    longest_pause: float = 10.0
    sleep: Callable[[float], None] = time.sleep

    def call(self, action: Callable[[], Result], tally: Tally) -> Result:
        """Raises the last TransportFault; every other exception passes through at once."""
        for attempt in range(self.retries + 1):
            tally.add(attempts=1)
            try:
                result = action()
            except TransportFault:
                if attempt == self.retries:
                    tally.add(failed=1)
                    raise
                tally.add(retries=1)
                self.sleep(min(self.longest_pause, self.first_pause * 2**attempt) * random.uniform(0.5, 1.5))
                continue
            if attempt:
                tally.add(recovered=1)
            return result
        raise AssertionError("unreachable")


def summary_line(name: str, tally: Tally) -> str:
    """One line per batch, and the counts start anew. E.g. "http: 64 attempts, 2 retries, 1 recovered, 0 failed"."""
    counts = tally.take()
    return f"{name}: " + ", ".join(f"{count} {what}" for what, count in counts.items())
