"""Modal sandboxes (optional extra: pip install modal). One fresh container per program, without network."""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from types import ModuleType
from typing import Any

from sdpo.errors import ConfigError
from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import ProgramOutcome, SandboxFault

from .http import fault_of
from .remote import RemoteCalls
from .retry import Retry, Tally, TransportFault, summary_line

APP = "sdpo-grading"
# Reads {"source", "stdin"} from its standard input, limits itself, and becomes the program.
BOOT = """
import io, json, resource, sys
request = json.loads(sys.stdin.read())
resource.setrlimit(resource.RLIMIT_CPU, (request["cpu"], request["cpu"]))
data = io.BytesIO(request["stdin"].encode("utf-8", "surrogateescape"))
sys.stdin = io.TextIOWrapper(data, "utf-8", "surrogateescape")
sys.argv = ["solution.py"]
exec(compile(request["source"], "program.py", "exec"), {"__name__": "__main__"})
"""
FLOOD_BYTES = 16 << 20  # of output that is not kept
CPU_LIMIT_CODES = frozenset({-9, 137, -24, 152})  # SIGKILL, SIGXCPU


class ModalRunner(RemoteCalls):
    """Thread-safe as far as Modal's client is. `modal` is for tests."""

    def __init__(self, retry: Retry, python_version: str = "3.11", modal: ModuleType | Any = None) -> None:
        self.modal = modal or load_client()
        self.retry = retry
        self.tally = Tally()
        self.app = self.modal.App.lookup(APP, create_if_missing=True)
        self.image = self.modal.Image.debian_slim(python_version=python_version)

    def run_program(self, source: str, stdin: bytes, limits: Limits, output_cap: int | None = None) -> ProgramOutcome:
        cap = output_cap if output_cap is not None else limits.output_kb << 10
        request = json.dumps(
            {
                "source": source,
                "stdin": stdin.decode("utf-8", "surrogateescape"),
                "cpu": max(1, round(limits.cpu_s + 0.5)),
            }
        )
        try:
            return self.retry.call(lambda: self._run(request, limits, cap), self.tally)
        except TransportFault as fault:
            raise SandboxFault(f"modal: {fault}") from None

    def _run(self, request: str, limits: Limits, cap: int) -> ProgramOutcome:
        start = time.monotonic()
        try:
            sandbox = self.modal.Sandbox.create(
                app=self.app,
                image=self.image,
                timeout=int(limits.wall_s) + 60,
                memory=limits.memory_mb + 128,
                block_network=True,
            )
        except self.modal.exception.Error as error:
            raise TransportFault(f"{type(error).__name__}: {error}") from None
        try:
            return self._execute(sandbox, request, limits, cap, start)
        except self.modal.exception.Error as error:
            raise TransportFault(f"{type(error).__name__}: {error}") from None
        finally:
            self._terminate(sandbox)

    def _execute(self, sandbox: Any, request: str, limits: Limits, cap: int, start: float) -> ProgramOutcome:
        process = sandbox.exec("python", "-I", "-X", "utf8", "-c", BOOT, timeout=int(limits.wall_s) + 1)
        process.stdin.write(request)
        process.stdin.write_eof()
        process.stdin.drain()
        out, whole = read_capped(process.stdout, cap)
        err, whole_errors = read_capped(process.stderr, cap)
        seconds = time.monotonic() - start
        if not (whole and whole_errors):  # the container is ended, whatever still runs in it
            return ProgramOutcome(GradeStatus.OUTPUT_LIMIT, out, err, None, "output", None, seconds, seconds)
        code = process.wait()
        fault = fault_of(err.decode(errors="replace")) if code else None
        status, detail = GradeStatus.OK, f"exit status {code}"
        if code in CPU_LIMIT_CODES:
            status, detail = GradeStatus.TIMEOUT, f"{limits.cpu_s:g} s"
        elif len(out) > cap:
            status, detail = GradeStatus.OUTPUT_LIMIT, "stdout"
        elif code:
            status = GradeStatus.MEMORY_LIMIT if fault and fault.type == "MemoryError" else GradeStatus.RUNTIME_ERROR
        return ProgramOutcome(status, out[:cap], err[:cap], code, detail, fault, seconds, seconds)

    def _terminate(self, sandbox: Any) -> None:
        with contextlib.suppress(self.modal.exception.Error):  # it ends by its own time limit
            sandbox.terminate()

    def summary(self) -> str:
        return summary_line("modal sandbox", self.tally)

    def close(self) -> None:
        """Containers end with their runs."""


def read_capped(stream: Any, cap: int) -> tuple[bytes, bool]:
    """The first bytes of a stream, one more than the cap at most, and whether it ended before it became a flood."""
    kept, seen = bytearray(), 0
    for part in stream:
        data = part.encode("utf-8", "replace") if isinstance(part, str) else part
        kept += data[: cap + 1 - len(kept)]
        seen += len(data)
        if seen > cap + FLOOD_BYTES:
            return bytes(kept), False
    return bytes(kept), True


def load_client() -> ModuleType:
    try:
        return importlib.import_module("modal")
    except ImportError:
        raise ConfigError(
            "grading.backend: got 'modal'; the client is not installed; pip install modal, then modal setup"
        ) from None
