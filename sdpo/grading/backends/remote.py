"""Function calls and assert files for services that only run whole programs with standard input.

Function calls: a driver (`driver.py`) runs the solution in a process of its own, gives it one input at a time and
prints encoded values; the expected values stay here, so a verdict is as hard to forge as locally. Assert files have to
share a process with the solution there, so they are marked weak.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from sdpo.records import GradeStatus
from sdpo.sandbox.inside import faults, frames, solver, stage
from sdpo.sandbox.inside.frames import FrameError, decode, encode
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import AssertCase, AssertOutcome, Fault, FunctionOutcome, ProgramOutcome, short_text
from sdpo.sandbox.sandbox import FRAME_ALLOWANCE

DRIVER = Path(__file__).with_name("driver.py").read_text()
# What the far side needs to load a solution, call it, and encode what it returns.
MODULES = {
    module.__name__.rpartition(".")[2]: Path(module.__file__ or "").read_text()
    for module in (frames, faults, stage, solver)
}
KILLED = (f"-{int(signal.SIGKILL)}", f"-{int(signal.SIGXCPU)}")  # by the CPU limit that the service sets
ASSERT_PROGRAM = """
import sys, types
_module = types.ModuleType("solution"); sys.modules["solution"] = _module
_source, _tests, _entry, _marker = {parts!r}
exec(compile(_source, "solution.py", "exec"), vars(_module))
_space = {{k: v for k, v in vars(_module).items() if not k.startswith("__")}}
_space["__name__"] = "tests"
exec(compile(_tests, "tests.py", "exec"), _space)
if _entry and callable(_space.get("check")): _space["check"](vars(_module)[_entry])
for _name, _value in list(_space.items()):
    if _name.startswith("test") and callable(_value): _value()
print(_marker)
"""


class ProgramRunner(Protocol):
    def run_program(
        self, source: str, stdin: bytes, limits: Limits, output_cap: int | None = None
    ) -> ProgramOutcome: ...


class RemoteCalls:
    """Mixed into a runner that has `run_program`."""

    def run_function(
        self: ProgramRunner,
        source: str,
        name: str,
        inputs: Sequence[Sequence[Any]],
        limits: Limits,
        *,
        answer_sizes: Sequence[int] | None = None,
    ) -> list[FunctionOutcome]:
        marker = secrets.token_hex(16)
        caps = [FRAME_ALLOWANCE + 4 * size for size in answer_sizes or [0] * len(inputs)]
        request = {
            "modules": MODULES,
            "source": source,
            "name": name,
            "inputs": [[encode(a) for a in args] for args in inputs],
            "marker": marker,
            "cap": max(caps, default=0) + FRAME_ALLOWANCE,
        }
        whole = replace(limits, cpu_s=limits.cpu_s * max(1, len(inputs)))
        outcome = self.run_program(DRIVER, json.dumps(request).encode(), whole, FRAME_ALLOWANCE + sum(caps))
        return read_answers(outcome, marker, len(inputs))

    def run_assert(
        self: ProgramRunner, source: str, code: str, entry_point: str | None, limits: Limits, *, prompt: str = ""
    ) -> AssertOutcome:
        marker = secrets.token_hex(16)
        start = time.monotonic()
        program = ASSERT_PROGRAM.format(parts=(source, code, entry_point, marker))
        outcome = self.run_program(program, b"", limits)
        seconds = time.monotonic() - start
        text = outcome.stdout.decode(errors="replace")
        if outcome.status is GradeStatus.OK and text.rstrip("\n").endswith(marker):
            return AssertOutcome((AssertCase(GradeStatus.OK),), weak=True, seconds=seconds)
        last = outcome.stderr.decode(errors="replace").strip().splitlines()[-1:]
        status = outcome.status
        if status in (GradeStatus.OK, GradeStatus.RUNTIME_ERROR):
            status = GradeStatus.WRONG if last and last[0].startswith("AssertionError") else GradeStatus.RUNTIME_ERROR
        detail = last[0] if last else "The process exited before the result was returned"
        return AssertOutcome((AssertCase(status, detail=detail),), weak=True, seconds=seconds)


def read_answers(outcome: ProgramOutcome, marker: str, count: int) -> list[FunctionOutcome]:
    """The lines that the driver printed: how the solution loaded, one answer for each call, how it ended. Every call
    without an answer gets the outcome of what ended the run."""
    seconds = outcome.wall_s / max(1, count)
    lines = outcome.stdout.decode(errors="replace").split("\n")
    told = [line[len(marker) :] for line in lines if line.startswith(marker)]
    said = [read_message(line[1:]) for line in told if line.startswith("=")]
    ended = next((line[1:20] for line in told if line.startswith(".")), "0")
    if said and "error" in said[0]:
        return [_answer(said[0], seconds)] * count
    answers = [_answer(message, seconds) for message in said[1:]]
    if outcome.status is not GradeStatus.OK:
        missing = FunctionOutcome(outcome.status, detail=outcome.detail, fault=outcome.fault)
    elif ended in KILLED:
        missing = FunctionOutcome(GradeStatus.TIMEOUT, detail="the CPU time of all calls")
    else:
        text = f"The process exited with status {ended} before the result was returned"
        missing = FunctionOutcome(GradeStatus.RUNTIME_ERROR, detail=text)
    return (answers + [missing] * count)[:count]


def read_message(text: str) -> dict[str, Any]:
    """A line of the driver; {} for what cannot be one."""
    try:
        data = frames.unpack(text.encode())
    except FrameError:
        return {}
    return data if isinstance(data, dict) else {}


def _answer(data: dict[str, Any], seconds: float) -> FunctionOutcome:
    if "value" in data:
        try:
            return FunctionOutcome(GradeStatus.OK, decode(data["value"]), seconds=seconds)
        except FrameError as error:
            return FunctionOutcome(GradeStatus.WRONG, detail=f"unreadable answer ({error})", seconds=seconds)
    if "missing" in data:
        text = f"the solution defines no {short_text(data['missing'], 100)}"
        return FunctionOutcome(GradeStatus.RUNTIME_ERROR, detail=text, seconds=seconds)
    if "error" not in data:
        return FunctionOutcome(GradeStatus.WRONG, detail="unreadable answer", seconds=seconds)
    fault = Fault.from_message(data["error"])
    status = GradeStatus.MEMORY_LIMIT if fault.type == "MemoryError" else GradeStatus.RUNTIME_ERROR
    return FunctionOutcome(status, fault=fault, seconds=seconds)
