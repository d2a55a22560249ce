"""What one run may use."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

MAX_HARD_CPU = 1 << 31


@dataclass(frozen=True)
class Limits:
    """CPU time is the limit that counts: on a loaded machine wall time would turn load into wrong rewards."""

    cpu_s: float = 4.0  # CPU time of one test (one stdin run, one function call, one assert file)
    memory_mb: int = 512  # address space above the interpreter's own
    output_kb: int = 64  # stdout kept, and the allowance added to the size of the expected answer
    scratch_mb: int = 16  # writable directory and largest file

    @property
    def wall_s(self) -> float:
        """Of one test, without the time that it waits for a busy processor."""
        return 3 * self.cpu_s + 2

    def idle_s(self, tests: int) -> float:
        """Seconds in which a program may do nothing, in all its tests together: as much as one may take, and what
        handing over the inputs can take."""
        return self.wall_s + 0.1 * tests

    @property
    def longest_s(self) -> float:
        """Wall time of one test on the busiest machine."""
        return 10 * self.wall_s

    def hard_cpu(self, tests: int = 1) -> int:
        """RLIMIT_CPU of a process that answers `tests` tests, for a grader that does not look. The kernel charges
        whole ticks to whoever runs at their end, so a program can be charged for all of its wall time on every
        processor without using it: the limit lies above that, and nobody gets there who is watched."""
        return min(math.ceil(self.longest_s * tests) * (os.cpu_count() or 1), MAX_HARD_CPU)
