"""Runs model-written programs behind walls. One object per process; every method may be called from any thread."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sdpo.errors import SandboxUnavailable
from sdpo.records import GradeStatus

from .assert_run import judged_tests
from .child_run import ChildRun
from .environment import build_plan
from .inside.frames import FrameError, decode, encode
from .inside.plan import LEVELS, Features
from .limits import Limits
from .outcome import AssertOutcome, Fault, FunctionOutcome, ProgramOutcome, SandboxFault, short_text
from .pool import RUNS_PER_SERVER, ServerPool
from .report import SandboxReport
from .self_test import Check, self_test
from .server import Server

logger = logging.getLogger(__name__)

PLAIN, NUMPY = "plain", "numpy"
SLOTS = 2 * RUNS_PER_SERVER + 4  # a judged test takes two; a run that was just ended keeps its slot for a moment
NUMPY_MENTIONED = re.compile(r"\bnumpy\b")
FRAME_ALLOWANCE = 64 << 10  # bytes of an answer beyond four times the expected value


@dataclass(frozen=True)
class SandboxOptions:
    """How the sandbox runs; what a run may use is `Limits`."""

    ceiling: str = "L3"  # strongest level to try
    concurrency: int = 8  # runs at once
    retries: int = 2  # of a fault of the sandbox itself
    packages: tuple[str, ...] = ("numpy",)  # third-party packages that programs may import
    allow_unsafe: bool = False  # run without isolation where none can be made


class Sandbox:
    """`with Sandbox() as sandbox: sandbox.run_program("print(1)", b"", Limits())`"""

    def __init__(self, options: SandboxOptions = SandboxOptions()) -> None:
        self.options = options
        self.report = self._start()
        warn_of_short_memory(options.concurrency)
        logger.log(logging.WARNING if self.report.unsafe else logging.INFO, self.report.line())

    def _start(self) -> SandboxReport:
        """The strongest level whose self-test stops every probe."""
        failures: list[SandboxReport] = []
        for ceiling in LEVELS[LEVELS.index(self.options.ceiling) : -1]:
            if failures and LEVELS.index(failures[-1].level) >= LEVELS.index(ceiling):
                continue  # that level, or a weaker one, was just found wanting
            report = self._open(ceiling)
            if report.level != "L0" and report.sound:
                return report
            failures.append(report)
            self.pool.close()
            if report.level == "L0":
                break
        if not self.options.allow_unsafe:
            raise SandboxUnavailable(
                f"no isolation level works on this machine: {failures[-1].line() if failures else 'none was tried'}; "
                "use another machine or container, or run model-written code unprotected with grading.allow_unsafe=true"
            )
        return dataclasses.replace(self._open("L0"), unsafe=True)

    def _open(self, ceiling: str) -> SandboxReport:
        options = self.options
        numpy = [name for name in ("numpy",) if name in options.packages]
        plans = {
            PLAIN: build_plan(ceiling, SLOTS, options.packages, []),
            NUMPY: build_plan(ceiling, SLOTS, options.packages, numpy),
        }
        self.pool = ServerPool(plans, options.concurrency, options.retries)
        self.features: Features = self.pool.run(PLAIN, lambda server: server.features)
        self.pool.fix_features(self.features)
        try:
            checks = self_test(self) if ceiling != "L0" else []
        except SandboxFault as error:
            checks = [Check("a run", False, str(error))]
        return SandboxReport(self.features, tuple(checks))

    @property
    def level(self) -> str:
        return self.features.level

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.pool.close()

    def run_program(self, source: str, stdin: bytes, limits: Limits, output_cap: int | None = None) -> ProgramOutcome:
        """One run, standard input to standard output. Raises SandboxFault after the retries.

        `output_cap`: bytes of stdout that end the run when exceeded; None: `limits.output_kb`.
        """
        cap = output_cap if output_cap is not None else limits.output_kb << 10
        return self.pool.run(flavor(source), lambda server: self._program(server, source, stdin, limits, cap))

    def _program(self, server: Server, source: str, stdin: bytes, limits: Limits, cap: int) -> ProgramOutcome:
        payload = to_bytes(source)
        with ChildRun(server, "program", payload, limits, stdin=stdin, stdout_cap=cap, drop_stdout=False) as run:
            run.wait_ready()
            start = time.monotonic()
            ending = run.wait_end()
            fault = first_fault(run)
            status = ending.status
            if status is GradeStatus.RUNTIME_ERROR and fault and fault.type == "MemoryError":
                status = GradeStatus.MEMORY_LIMIT
            wall = time.monotonic() - start
            out, err = bytes(run.stdout), bytes(run.stderr)
            used = (ending.cpu_s, wall, run.idle_s)
            return ProgramOutcome(status, out, err, ending.exit_code, ending.detail, fault, *used)

    def run_function(
        self,
        source: str,
        name: str,
        inputs: Sequence[Sequence[Any]],
        limits: Limits,
        *,
        answer_sizes: Sequence[int] | None = None,
    ) -> list[FunctionOutcome]:
        """Calls `name` of one solution with each list of arguments in turn, all in one process.

        An input goes out only after the last one was answered; a limit or a dead process ends the run, and the calls
        not made get the same outcome. `answer_sizes[i]`: encoded size of the expected value, for the cap on the
        answer. Raises SandboxFault.
        """
        sizes = answer_sizes or [0] * len(inputs)

        def action(server: Server) -> list[FunctionOutcome]:
            return self._function(server, source, name, inputs, limits, sizes)

        return self.pool.run(flavor(source), action)

    def _function(
        self,
        server: Server,
        source: str,
        name: str,
        inputs: Sequence[Sequence[Any]],
        limits: Limits,
        sizes: Sequence[int],
    ) -> list[FunctionOutcome]:
        outcomes: list[FunctionOutcome] = []
        payload = to_bytes(source)
        cap = limits.output_kb << 10
        with ChildRun(
            server, "solver", payload, limits, tests=len(inputs) + 1, stdout_cap=cap, drop_stdout=True
        ) as run:
            run.wait_ready()
            loaded = run.receive(FRAME_ALLOWANCE)
            broken = None
            if loaded != {"loaded": 1}:
                broken = dead_outcome(run, loaded, 0.0)
                run.end(broken.status, "the solution does not load")
            for index, arguments in enumerate(inputs):
                if broken is None and run.ending is not None:  # it has ended, if with an answer: to that one call
                    broken = dead_outcome(run, None, 0.0)
                outcomes.append(broken or self._one_call(run, name, arguments, FRAME_ALLOWANCE + 4 * sizes[index]))
            run.end(GradeStatus.OK, "done")
            run.reap()
        return outcomes

    def run_assert(
        self, source: str, code: str, entry_point: str | None, limits: Limits, *, prompt: str = ""
    ) -> AssertOutcome:
        """Runs a test file against a solution, each in a process of its own. `prompt`: its text tells which names of
        the solution were asked for. Raises SandboxFault."""
        wanted = NUMPY if flavor(source) == NUMPY or flavor(code) == NUMPY else PLAIN
        return judged_tests(self.pool, wanted, to_bytes(source), code, entry_point, prompt, limits)

    def _one_call(self, run: ChildRun, name: str, arguments: Sequence[Any], cap: int) -> FunctionOutcome:
        start = time.monotonic()
        answer = run.ask({"name": name, "args": [encode(item) for item in arguments]}, cap)
        seconds = time.monotonic() - start
        if not isinstance(answer, dict) or "value" not in answer:
            return dead_outcome(run, answer, seconds)
        try:
            value = decode(answer["value"])
        except FrameError as error:
            run.end(GradeStatus.WRONG, f"unreadable answer ({error})")
            return FunctionOutcome(GradeStatus.WRONG, None, f"unreadable answer ({error})", None, seconds)
        return FunctionOutcome(GradeStatus.OK, value, seconds=seconds)


def warn_of_short_memory(concurrency: int) -> None:
    """Runs that together may use more than the machine has would be killed by it, and then repeated."""
    limits = Limits()
    wanted = concurrency * (limits.memory_mb + limits.scratch_mb)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE") >> 20
    if wanted > free:
        logger.warning(
            "%d runs at once may use %d MB, %d MB are free: lower grading.concurrency", concurrency, wanted, free
        )


def dead_outcome(run: ChildRun, answer: Any, seconds: float) -> FunctionOutcome:
    """The outcome when there is no value: what the program said, else how it ended."""
    if isinstance(answer, dict) and "missing" in answer:
        text = f"the solution defines no {short_text(answer['missing'], 100)}"
        run.end(GradeStatus.RUNTIME_ERROR, text)
        return FunctionOutcome(GradeStatus.RUNTIME_ERROR, None, text, None, seconds)
    if isinstance(answer, dict) and "error" in answer:
        fault = Fault.from_message(answer["error"])
        if fault.type == "SystemExit":
            code = fault.code if isinstance(fault.code, int) else 0 if fault.code is None else 1
            text = f"The process exited with status {code} before the result was returned"
            return FunctionOutcome(GradeStatus.RUNTIME_ERROR, None, text, None, seconds)
        status = GradeStatus.MEMORY_LIMIT if fault.type == "MemoryError" else GradeStatus.RUNTIME_ERROR
        return FunctionOutcome(status, None, "", fault, seconds)
    if run.ending is None:
        run.end(GradeStatus.RUNTIME_ERROR, "the answer is not in the form of an answer")
        run.reap()
    ending = run.ending
    assert ending is not None
    if ending.status is GradeStatus.OK or ending.detail.startswith("exit status"):
        text = f"The process exited with status {ending.exit_code} before the result was returned"
        return FunctionOutcome(GradeStatus.RUNTIME_ERROR, None, text, None, seconds)
    return FunctionOutcome(ending.status, None, ending.detail, None, seconds)


def first_fault(run: ChildRun) -> Fault | None:
    """The description of an uncaught exception that the program's side left on the channel."""
    message = run.leftover_frame(FRAME_ALLOWANCE)
    return Fault.from_message(message["error"]) if isinstance(message, dict) and "error" in message else None


def flavor(source: str) -> str:
    return NUMPY if NUMPY_MENTIONED.search(source) else PLAIN


def to_bytes(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")
