"""What comes back from a run. Nothing here is a verdict on an answer: that needs the expected value."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

from sdpo.records import GradeStatus

from .limits import Limits


class SandboxFault(Exception):
    """The sandbox failed, not the program. Retried; never a verdict."""


class SickServer(SandboxFault):
    """The fork server lives and does not do its work: it has to be replaced."""


def short_text(value: Any, limit: int) -> str:
    """The beginning of a text that the untrusted side sent; "" for anything else."""
    return value[:limit] if isinstance(value, str) else ""


@dataclass(frozen=True)
class Fault:
    """An exception inside the program, as the program's side described it (so: untrusted text)."""

    type: str
    message: str
    frames: tuple[tuple[int, str, str], ...] = ()  # line, function, source; outermost first
    code: Any = None  # argument of SystemExit

    @staticmethod
    def from_message(data: Any) -> Fault:
        """Tolerant: what is not of the expected shape counts as empty. Never str() of it, which a deeply nested list
        turns into a RecursionError here."""
        if not isinstance(data, dict):
            return Fault("Error", "")
        rows = data.get("frames")
        frames = []
        for row in rows[:12] if isinstance(rows, list) else []:
            if isinstance(row, list) and len(row) == 3 and isinstance(row[0], int):
                frames.append((row[0] % 10**9, short_text(row[1], 80), short_text(row[2], 200)))
        code = data.get("code")
        code = code if code is None or (isinstance(code, int) and abs(code) < 1 << 32) else short_text(code, 100)
        return Fault(
            short_text(data.get("type"), 80) or "Error", short_text(data.get("message"), 600), tuple(frames), code
        )


@dataclass(frozen=True)
class Ending:
    """How a process ended. `status` OK: exit status 0."""

    status: GradeStatus
    detail: str = ""  # one line for people, e.g. "killed by signal SIGSEGV"
    exit_code: int | None = None
    cpu_s: float = 0.0
    max_rss_mb: float = 0.0


def ending_of(wait_status: int, limits: Limits, out_of_cpu: bool) -> Ending:
    """What a wait status means. `out_of_cpu`: the kernel's own CPU limit may have been reached. SandboxFault when
    nothing that the program did explains it: the filter lets no program send itself SIGKILL, so below that limit it
    came from outside."""
    code = os.waitstatus_to_exitcode(wait_status)
    if code >= 0:
        status, detail = GradeStatus.OK if code == 0 else GradeStatus.RUNTIME_ERROR, f"exit status {code}"
    elif -code == signal.SIGKILL:
        if not out_of_cpu:
            raise SandboxFault("the run was killed from outside")
        status, detail = GradeStatus.TIMEOUT, f"{limits.cpu_s:g} s"
    else:
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else str(-code)
        status, detail = GradeStatus.RUNTIME_ERROR, f"killed by signal {name}"
    return Ending(status, detail, code)


@dataclass(frozen=True)
class ProgramOutcome:
    """One run of a whole program."""

    status: GradeStatus  # OK: ended by itself with status 0
    stdout: bytes
    stderr: bytes
    exit_code: int | None
    detail: str = ""
    fault: Fault | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    idle_s: float = 0.0  # of it neither computing nor waiting for a processor, as far as it was watched


@dataclass(frozen=True)
class FunctionOutcome:
    """One call. `value` is plain data of exact built-in types, meaningful only when `status` is OK."""

    status: GradeStatus
    value: Any = None
    detail: str = ""
    fault: Fault | None = None
    seconds: float = 0.0

    @property
    def error(self) -> str:
        """One line: "ValueError: bad", or why there is no value."""
        return f"{self.fault.type}: {self.fault.message}" if self.fault else self.detail


@dataclass(frozen=True)
class AssertCase:
    """One assert statement or test function that did not hold, or the one that did."""

    status: GradeStatus
    statement: str = ""  # e.g. "assert add(1, 2) == 3"
    left: str = ""
    right: str = ""
    fault: Fault | None = None
    detail: str = ""


@dataclass(frozen=True)
class AssertOutcome:
    """A test file's run. `weak`: the program had a say in the verdict; `why`: how, in a few words. `edited`: it changed
    arguments that the tests still hold, in functions that also return something."""

    cases: tuple[AssertCase, ...]
    weak: bool = False
    seconds: float = 0.0
    why: str = ""
    edited: bool = False

    @property
    def passed(self) -> bool:
        return bool(self.cases) and all(case.status is GradeStatus.OK for case in self.cases)
