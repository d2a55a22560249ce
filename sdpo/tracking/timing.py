"""Where the seconds of a step go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

TRAINING = ("rollout", "update", "sync")  # what every step is made of
ASIDE = ("validate", "export", "checkpoint")  # now and then
PHASES = (*TRAINING, *ASIDE)


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


def tokens_per_s(tokens: int, timing: Mapping[str, float]) -> float:
    """Response tokens by the seconds of the training phases: a step with a validation is as fast as one without."""
    return tokens / max(sum(timing.get(f"timing/{phase}_s", 0.0) for phase in TRAINING), 1e-9)
