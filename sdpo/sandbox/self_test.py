"""The start-up test: small attacks through the real path. A level that does not stop every one of them is not used."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sdpo.records import GradeStatus

from .inside.kernel import NR
from .limits import Limits

CANARY = "canary-of-the-sandbox-self-test"
PRELUDE = """
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def syscall(number, *args):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
def refused(action):
    try:
        action()
    except (OSError, MemoryError) as error:
        return "stopped: %s" % type(error).__name__
    return "open"
def connect(kind, address):
    s = socket.socket(*kind)
    s.settimeout(0.2)
    s.connect(address)
"""
# Name -> body of probe(path). Stopped when the result starts with "stopped".
PROBES = {
    "environment": 'return "open" if "SDPO_SELF_TEST_SECRET" in os.environ else "stopped"',
    "environment in /proc": 'return refused(lambda: open("/proc/%d/environ" % (os.getppid() or 1), "rb").read())',
    "own memory in /proc": 'return refused(lambda: open("/proc/self/mem", "rb"))',
    "read a file of the host": "return refused(lambda: open(path).read())",
    "list the parent of a file of the host": "return refused(lambda: os.listdir(os.path.dirname(path)))",
    "write beside a file of the host": 'return refused(lambda: open(path + ".new", "w"))',
    "TCP": 'return refused(lambda: connect((socket.AF_INET, socket.SOCK_STREAM), ("127.0.0.1", 9)))',
    "UDP": 'return refused(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9)))',
    "unix sockets": "return refused(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))",
    "processes": "return refused(lambda: os.fork() or os._exit(0))",
    "programs": 'return refused(lambda: os.execv("/bin/true", ["true"]))',
    "other processes' memory": (
        'parent = os.getppid() or 1\nreturn "open" if libc.ptrace(16, parent, 0, 0) == 0 else "stopped"'
    ),
    "signals": "return refused(lambda: os.kill(-1, 0))",
    "namespaces": f'return "open" if syscall({NR.get("unshare", -1)}, 0x10000000) == 0 else "stopped"',
    "inherited descriptors": (
        "def is_open(fd):\n"
        "    try: os.fstat(fd)\n"
        "    except OSError: return False\n"
        "    return True\n"
        'return "open" if any(map(is_open, range(4, 1024))) else "stopped"'
    ),
    "memory": "return refused(lambda: bytearray(900 << 20))",
}


class Tested(Protocol):
    """The sandbox, as far as the test uses it."""

    def run_program(self, source: str, stdin: bytes, limits: Limits) -> Any: ...

    def run_function(self, source: str, name: str, inputs: list[list[Any]], limits: Limits) -> Any: ...


@dataclass(frozen=True)
class Check:
    name: str
    stopped: bool
    detail: str


def self_test(sandbox: Tested) -> list[Check]:
    """Sixteen probes, the time limit, the output cap, and one honest program. Raises SandboxFault."""
    limits = Limits(cpu_s=2.0, memory_mb=256)
    with canary_file() as path:
        checks = [run_probe(sandbox, name, body, path, limits) for name, body in PROBES.items()]
    spin = sandbox.run_program("while True: pass", b"", Limits(cpu_s=0.05))
    checks.append(Check("time limit", spin.status is GradeStatus.TIMEOUT, spin.status))
    flood = sandbox.run_program("while True: print('x' * 9999)", b"", limits)
    checks.append(Check("output limit", flood.status is GradeStatus.OUTPUT_LIMIT, flood.status))
    honest = sandbox.run_program("print(int(input()) * 2)", b"21\n", limits)
    checks.append(
        Check("an honest program", honest.stdout == b"42\n" and honest.status is GradeStatus.OK, honest.detail)
    )
    return checks


def run_probe(sandbox: Tested, name: str, body: str, path: str, limits: Limits) -> Check:
    source = PRELUDE + "def probe(path):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    (outcome,) = sandbox.run_function(source, "probe", [[path]], limits)
    if outcome.status is GradeStatus.OK:
        text = str(outcome.value)
        return Check(name, text.startswith("stopped"), text)
    # A probe that dies of its attack is stopped too, unless it never ran.
    return Check(name, outcome.status is not GradeStatus.INFRA_ERROR, outcome.error)


@contextmanager
def canary_file() -> Iterator[str]:
    """A file anybody on the host may read, and an environment variable; both should be out of reach."""
    os.environ["SDPO_SELF_TEST_SECRET"] = CANARY
    with tempfile.TemporaryDirectory(prefix="sdpo-self-test-") as folder:
        os.chmod(folder, 0o777)
        path = os.path.join(folder, "canary.txt")
        with open(path, "w") as file:
            file.write(CANARY)
        os.chmod(path, 0o644)
        try:
            yield path
        finally:
            os.environ.pop("SDPO_SELF_TEST_SECRET", None)
