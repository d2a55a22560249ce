"""What one run may use."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """CPU time is the limit that counts: on a loaded machine wall time would turn load into wrong rewards."""

    cpu_s: float = 4.0  # CPU time of one test (one stdin run, one function call, one assert file)
    memory_mb: int = 512  # address space above the interpreter's own
    output_kb: int = 64  # stdout kept, and the allowance added to the size of the expected answer
    scratch_mb: int = 16  # writable directory and largest file

    @property
    def wall_s(self) -> float:
        return 3 * self.cpu_s + 2

    def hard_cpu(self, tests: int = 1) -> int:
        """RLIMIT_CPU of a process that answers `tests` tests: whole seconds, a second of slack for the supervisor's
        clock."""
        return math.ceil(self.cpu_s * tests) + 1
