"""Where the seconds of a step go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PHASES = ("rollout", "update", "sync", "validate", "export", "checkpoint")


class PhaseTimer:
    """Measures the phases of the loop on the wall clock. `show` is told the name of the phase that begins.

    with timer("rollout"):
        ...
    metrics |= timer.step_metrics()  # timing/rollout_s, ..., timing/step_s; starts the next step
    """

    def __init__(self, show: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._step_began = clock()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if self._show:
            self._show(phase)
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + self._clock() - began

    def step_metrics(self) -> dict[str, float]:
        """Seconds of each phase since the last call, and `timing/step_s`: all seconds since the last call."""
        now = self._clock()
        metrics = {f"timing/{phase}_s": seconds for phase, seconds in self._seconds.items()}
        metrics["timing/step_s"] = now - self._step_began
        self._seconds.clear()
        self._step_began = now
        return metrics
