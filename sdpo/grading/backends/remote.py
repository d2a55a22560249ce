"""Function calls and assert files for services that only run whole programs with standard input.

Function calls: the program gets the inputs on its standard input and prints encoded values; the expected values stay
here, so a verdict is as hard to forge as locally. Assert files have to share a process with the solution there, so
they are marked weak.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from sdpo.records import GradeStatus

from ..sandbox.inside import faults, frames
from ..sandbox.inside.frames import FrameError, decode, encode
from ..sandbox.limits import Limits
from ..sandbox.outcome import AssertCase, AssertOutcome, Fault, FunctionOutcome, ProgramOutcome
from ..sandbox.sandbox import FRAME_ALLOWANCE

DRIVER = """
import sys, json, types
_frames = types.ModuleType("_frames")
exec({frames!r}, vars(_frames))
_faults = types.ModuleType("_faults")
vars(_faults)["describe"] = _frames.describe
exec({faults!r}, vars(_faults))
_request = json.loads(sys.stdin.read())
_name = _request["name"]
def _answer(data):
    sys.stdout.flush()
    sys.__stdout__.write("\\n" + _request["marker"] + json.dumps(data) + "\\n")
    sys.__stdout__.flush()
_source = _request["source"]
_faults.load_source(_source)
_module = types.ModuleType("solution")
sys.modules["solution"] = _module
try:
    exec(compile(_source, "solution.py", "exec"), vars(_module))
except BaseException as _error:  # foreign code may raise anything
    _answer({{"load": _faults.fault(_error)}})
    sys.exit(0)
for _args in _request["inputs"]:
    try:
        _holder = _module
        if _name not in vars(_module) and "Solution" in vars(_module):
            _holder = vars(_module)["Solution"]()
        _answer({{"value": _frames.encode(getattr(_holder, _name)(*[_frames.decode(a) for a in _args]))}})
    except BaseException as _error:  # foreign code may raise anything
        _answer({{"error": _faults.fault(_error)}})
"""
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


def without_future(source: str) -> str:
    return source.replace("from __future__ import annotations\n", "").replace("from .frames import describe\n", "")


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
        request = {
            "source": source,
            "name": name,
            "inputs": [[encode(a) for a in args] for args in inputs],
            "marker": marker,
        }
        codec, fault_code = (without_future(Path(module.__file__ or "").read_text()) for module in (frames, faults))
        driver = DRIVER.format(frames=codec, faults=fault_code)
        whole = Limits(limits.cpu_s * max(1, len(inputs)), limits.memory_mb, limits.output_kb, limits.scratch_mb)
        cap = FRAME_ALLOWANCE + sum(FRAME_ALLOWANCE + 4 * size for size in answer_sizes or [0] * len(inputs))
        outcome = self.run_program(driver, json.dumps(request).encode(), whole, cap)
        return read_answers(outcome, marker, len(inputs))

    def run_assert(
        self: ProgramRunner, source: str, code: str, entry_point: str | None, limits: Limits
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
    answers: list[FunctionOutcome] = []
    seconds = outcome.wall_s / max(1, count)
    for line in outcome.stdout.decode(errors="replace").splitlines():
        if line.startswith(marker):
            answers.append(_answer(line[len(marker) :], seconds))
            if answers[-1].detail == "load":
                return [answers[-1]] * count
    if outcome.status is GradeStatus.OK:
        missing = FunctionOutcome(
            GradeStatus.RUNTIME_ERROR, detail="The process exited with status 0 before the result was returned"
        )
    else:
        missing = FunctionOutcome(outcome.status, detail=outcome.detail)
    return (answers + [missing] * count)[:count]


def _answer(text: str, seconds: float) -> FunctionOutcome:
    try:
        data = frames.unpack(text.encode())
        if "value" in data:
            return FunctionOutcome(GradeStatus.OK, decode(data["value"]), seconds=seconds)
    except (FrameError, TypeError):
        return FunctionOutcome(GradeStatus.WRONG, detail="unreadable answer", seconds=seconds)
    fault = Fault.from_message(data.get("error", data.get("load")))
    return FunctionOutcome(
        GradeStatus.RUNTIME_ERROR, detail="load" if "load" in data else "", fault=fault, seconds=seconds
    )
