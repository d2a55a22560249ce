"""One fork server seen from the grader: start, hand over runs, notice its death."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from .inside.plan import Features, Plan
from .outcome import SandboxFault

PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
BOOT = f"""
import sys
sys.path.insert(0, {PACKAGE_ROOT!r})
from sdpo.sandbox.inside.zygote import main
sys.path.pop(0)
main()
"""
START_SECONDS = 180.0
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment() -> dict[str, str]:
    """Built from nothing; the library path is the one thing an interpreter may need to start at all."""
    result = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": "/",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MALLOC_ARENA_MAX": "1",  # each thread would reserve 64 MB of address space for its own
    }
    result |= dict.fromkeys(THREADS, "1")
    if "LD_LIBRARY_PATH" in os.environ:
        result["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return result


class Server:
    """Raises SandboxFault when the process cannot start or has died."""

    def __init__(self, plan: Plan) -> None:
        self.active = 0  # runs in flight, kept by the pool
        self.plan = plan
        self._lock = threading.Lock()
        self._stderr = os.memfd_create("sandbox-server-stderr", os.MFD_CLOEXEC)
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        try:
            with theirs:
                self.process = self._spawn(theirs)
        except OSError as error:  # no memory for another process, or no room for one
            self.control.close()
            os.close(self._stderr)
            raise SandboxFault(f"fork server did not start: {error}") from None
        try:
            self.control.send(plan.to_json().encode())
            self._read_greeting()
        except (OSError, SandboxFault) as error:
            self.kill()
            raise SandboxFault(f"fork server did not start: {error}") from None

    def _spawn(self, far: socket.socket) -> subprocess.Popen[bytes]:
        # -I would ignore PYTHONHASHSEED too; the environment is already ours, so the rest of -I is spelled out.
        command = [sys.executable, "-P", "-s", "-S", "-X", "utf8", "-c", BOOT, str(far.fileno())]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            env=environment(),
            cwd="/",
            pass_fds=[far.fileno()],
            start_new_session=True,
        )

    def _read_greeting(self) -> None:
        self.control.settimeout(START_SECONDS)
        greeting = self.control.recv(1 << 16)
        self.control.settimeout(None)
        if not greeting:
            raise SandboxFault(self.last_words() or "it closed its socket")
        data = json.loads(greeting)
        if "error" in data:
            raise SandboxFault(data["error"])
        self.features = Features(**data["features"])
        self.base_mb: int = data["base_mb"]

    def last_words(self) -> str:
        return os.pread(self._stderr, 4000, 0).decode(errors="replace").strip()[-1000:]

    def submit(self, request: bytes, fds: list[int]) -> None:
        """One run (plan.REQUEST); its own socket is fds[0]. Atomic, so any thread may call it."""
        try:
            socket.send_fds(self.control, [request], fds)
        except OSError as error:
            raise SandboxFault(f"fork server is gone: {error}") from None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Ends the server and with it every run. Safe to call twice and from any thread."""
        with self._lock:
            if self.control.fileno() >= 0:
                self.control.close()
                self.process.kill()
                self.process.wait()
                os.close(self._stderr)
