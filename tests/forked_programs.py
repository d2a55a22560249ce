"""Programs of the package as processes of their own, without the seconds that each takes to import torch and
transformers: a server has imported them, and every program is a fork of it, with arguments, streams, folder and
environment of its own. The package itself is imported by each program, from where it finds it.

One thing is not as in a fresh interpreter: the order of sets of strings is the server's. What has to hold for every
order compares with a run that `subprocess` has started.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

SHARED = (
    "hydra", "jinja2", "numpy", "rich.live", "safetensors.torch", "torch.distributed.checkpoint",
    "torch.distributed.fsdp", "transformers.models.llama.modeling_llama",
)  # fmt: skip
PATIENCE_S = 280.0
MAX_REQUEST = 1 << 17


class Program:
    """A program that is running; what it prints goes to files."""

    def __init__(self, args: tuple[str, ...], server: socket.socket, cwd: Path | None, env: Mapping[str, str]) -> None:
        self.args = args
        self._streams = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (closed when it has ended)
        reader, status = os.pipe()
        self._status = open(reader, "rb", buffering=0)  # noqa: SIM115 (unbuffered: what was read is what was asked for)
        request = json.dumps([args, str(cwd or Path.cwd()), dict(env)]).encode()
        socket.send_fds(server, [request], [*(stream.fileno() for stream in self._streams), status])
        os.close(status)
        self._pid = int(self._next_answer())

    def _next_answer(self) -> bytes:
        """The process id first, at its end the exit code."""
        if not select.select([self._status], [], [], PATIENCE_S)[0]:
            self.send_signal(signal.SIGKILL)
            raise subprocess.TimeoutExpired(self.args, PATIENCE_S)
        return self._status.readline()

    def send_signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait_until_it_prints(self, pattern: str) -> None:
        printed = self._streams[0].fileno()
        while not re.search(pattern, os.pread(printed, 1 << 20, 0).decode()):
            assert not select.select([self._status], [], [], 0.05)[0], f"{self.args} ended and printed no {pattern}"

    def finish(self) -> subprocess.CompletedProcess[str]:
        code = int(self._next_answer())
        self._status.close()
        said = []
        for stream in self._streams:
            with stream:
                stream.seek(0)
                said.append(stream.read())
        return subprocess.CompletedProcess(self.args, code, *said)


class Programs:
    """Starts programs: `-m MODULE ARGUMENTS` or `FILE ARGUMENTS`, as for the interpreter."""

    def __init__(self) -> None:
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with far:
            command = [sys.executable, __file__, str(far.fileno())]
            alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # numpy's, which would start threads
            self._server = subprocess.Popen(command, pass_fds=[far.fileno()], env=alone)

    def start(self, *args: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Program:
        words = tuple(map(str, args))
        return Program(words, self._socket, cwd, os.environ if env is None else env)

    def run(self, *args: object, **where) -> subprocess.CompletedProcess[str]:
        return self.start(*args, **where).finish()

    def close(self) -> None:
        self._socket.close()
        self._server.wait()


def import_what_programs_share() -> None:
    for name in SHARED:
        importlib.import_module(name)


def next_program(server: socket.socket) -> list[str]:
    """Returns in a new process, once for each request, with the arguments of the program to run; ends the server when
    nobody can ask any more."""
    waiting: list[int] = []
    while True:
        request, descriptors, _, _ = socket.recv_fds(server, MAX_REQUEST, 3)
        waiting = [pid for pid in waiting if os.waitpid(pid, os.WNOHANG if request else 0) == (0, 0)]
        if not request:
            os._exit(0)
        if (pid := os.fork()) == 0:
            break
        waiting.append(pid)
        for descriptor in descriptors:
            os.close(descriptor)
    server.close()
    *streams, status = descriptors
    if program := os.fork():
        os.write(status, f"{program}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        os.write(status, f"{code}\n".encode())
        os._exit(0)
    os.close(status)
    args, cwd, env = json.loads(request)
    for number, descriptor in enumerate(streams, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    return args


if __name__ == "__main__":
    import_what_programs_share()
    own = socket.socket(fileno=int(sys.argv[1]))
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has none of the threads"
    words = next_program(own)
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.argv, module = (words[1:], words[1]) if words[0] == "-m" else (words, None)
    sys.path[0] = os.getcwd() if module else str(Path(words[0]).resolve().parent)
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")
