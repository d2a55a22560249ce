"""A SandboxFusion-compatible service: POST /run_code, one program a request."""

from __future__ import annotations

from typing import Any

import httpx

from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import Fault, ProgramOutcome, SandboxFault, short_text

from .remote import RemoteCalls
from .reply import FRESH_CONNECTIONS, ReplyTooLarge, post, read_object
from .retry import Retry, Tally, TransportFault, summary_line

RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
NETWORK_SECONDS = 30.0  # beyond the program's own time
MAX_ESCAPE, REST_BYTES = 6, 1 << 20  # bytes of JSON for one of output; the rest of a reply, errors included
MAX_SECONDS = 1e9


class HttpRunner(RemoteCalls):
    """Thread-safe. `client` is for tests."""

    def __init__(self, url: str, retry: Retry, client: httpx.Client | None = None) -> None:
        self.url = url.rstrip("/") + "/run_code"
        self.retry = retry
        self.tally = Tally()
        self.client = client or httpx.Client(limits=FRESH_CONNECTIONS)

    def run_program(self, source: str, stdin: bytes, limits: Limits, output_cap: int | None = None) -> ProgramOutcome:
        request = {
            "language": "python",
            "code": source,
            "stdin": stdin.decode("utf-8", "replace"),
            "compile_timeout": 10,
            "run_timeout": limits.wall_s,
            "memory_limit_MB": limits.memory_mb,
            "files": {},
            "fetch_files": [],
        }
        cap = output_cap if output_cap is not None else limits.output_kb << 10
        try:
            answer = self.retry.call(lambda: self._post(request, limits.wall_s + NETWORK_SECONDS, cap), self.tally)
        except ReplyTooLarge as fault:
            if fault.is_object:  # only what the program printed can be as long as that
                return ProgramOutcome(GradeStatus.OUTPUT_LIMIT, b"", b"", None, "reply")
            raise SandboxFault(f"sandbox service {self.url}: {fault}") from None
        except TransportFault as fault:
            raise SandboxFault(f"sandbox service {self.url}: {fault}") from None
        return read_outcome(answer, cap, limits)

    def _post(self, request: dict[str, Any], seconds: float, cap: int) -> dict[str, Any]:
        """Raises TransportFault for what a second try may repair, SandboxFault for what it will not."""
        status, body = post(self.client, self.url, request, seconds=seconds, cap=MAX_ESCAPE * cap + REST_BYTES)
        if status in RETRIED_STATUS:
            raise TransportFault(f"status {status}")
        if status != 200:
            raise SandboxFault(f"sandbox service {self.url}: status {status}: {body[:200].decode(errors='replace')}")
        answer = read_object(body)
        run = answer.get("run_result")
        if answer.get("status") == "SandboxError" or not isinstance(run, dict) or run.get("status") == "Error":
            raise TransportFault(f"the service failed: {short_text(answer.get('message'), 200)}")
        code = run.get("return_code")
        if run.get("status") != "TimeLimitExceeded" and (type(code) is not int or code == -1):
            raise TransportFault("the service gives no exit status")
        if not all(isinstance(run.get(name), (str, type(None))) for name in ("stdout", "stderr")):
            raise TransportFault("the service gives output that is no text")
        return answer

    def summary(self) -> str:
        return summary_line("http sandbox", self.tally)

    def close(self) -> None:
        self.client.close()


def read_outcome(answer: dict[str, Any], cap: int, limits: Limits) -> ProgramOutcome:
    run = answer["run_result"]
    out, err = ((run.get(name) or "").encode("utf-8", "replace") for name in ("stdout", "stderr"))
    code = run.get("return_code") if type(run.get("return_code")) is int else None
    seconds = run.get("execution_time")
    seconds = float(seconds) if type(seconds) in (int, float) and 0 <= seconds < MAX_SECONDS else 0.0
    status, detail = GradeStatus.OK, f"exit status {code}"
    fault = fault_of(err.decode(errors="replace")) if code else None
    if run.get("status") == "TimeLimitExceeded":
        status, detail = GradeStatus.TIMEOUT, f"{limits.cpu_s:g} s"
    elif len(out) > cap:
        status, detail = GradeStatus.OUTPUT_LIMIT, "stdout"
    elif code != 0:
        status = GradeStatus.MEMORY_LIMIT if fault and fault.type == "MemoryError" else GradeStatus.RUNTIME_ERROR
    return ProgramOutcome(status, out[:cap], err[:cap], code, detail, fault, seconds, seconds)


def fault_of(stderr: str) -> Fault | None:
    """The exception that a traceback ends with."""
    lines = stderr.strip().splitlines()
    if not lines or "Traceback (most recent call last)" not in stderr and "SyntaxError" not in lines[-1]:
        return None
    kind, _, message = lines[-1].partition(": ")
    return Fault(kind[:80], message[:500])
