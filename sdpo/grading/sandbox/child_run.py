"""One child process seen from the grader: descriptors, frames, deadlines, output caps, and how it ended.

Everything happens in the calling thread; there is no event loop to share. The run's socket is its life line: the
server kills the run when this end closes, also when the grader itself is killed.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sdpo.records import GradeStatus

from .inside.frames import LENGTH, FrameError, pack, unpack
from .inside.plan import ENDING, KINDS, REQUEST
from .limits import Limits
from .outcome import Ending, SandboxFault, SickServer, ending_of
from .poller import Poller, memory_file
from .server import Server

SETUP_SECONDS = 120.0  # walls up; beyond it the server is taken for dead. Long, because machines can be very busy
REAP_SECONDS = 60.0
FLOOD_BYTES = 16 << 20  # dropped output beyond which a run is ended
CHUNK = 1 << 16


class ChildRun:
    """Use as a context manager; leaving it kills what still runs.

    `stdout_cap`: bytes; one more ends the run (a program's answer), or is dropped when `drop_stdout`. `link`: a
    socket for the process on the other side, as the channel where `own_channel` is off. Runs that share a `poller`
    end together.
    """

    def __init__(
        self,
        server: Server,
        kind: str,
        payload: bytes,
        limits: Limits,
        *,
        stdin: bytes = b"",
        tests: int = 1,
        stdout_cap: int,
        drop_stdout: bool,
        link: socket.socket | None = None,
        own_channel: bool = True,
        poller: Poller | None = None,
    ) -> None:
        self.limits = limits
        self.hard_cpu = limits.hard_cpu(tests)
        self.ending: Ending | None = None
        self.pid = 0
        self.stdout, self.stderr = bytearray(), bytearray()
        self.inbox, self.outbox = bytearray(), bytearray()
        self._caps = {"stdout": stdout_cap, "stderr": limits.output_kb << 10}
        self._drop_stdout = drop_stdout
        self._dropped = 0
        self._exited = False
        self._fds: dict[int, str] = {}
        self._poller = poller or Poller()
        self._poller.runs.append(self)
        self._cpu_start = 0.0
        self._inbox_cap = CHUNK
        self._submit(server, kind, payload, stdin, link, own_channel)
        self.started = time.monotonic()

    def _submit(
        self, server: Server, kind: str, payload: bytes, stdin: bytes, link: socket.socket | None, own: bool
    ) -> None:
        limits = self.limits
        request = REQUEST.pack(KINDS.index(kind), self.hard_cpu, limits.memory_mb, limits.scratch_mb)
        run_socket, far_run = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        run_socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        run_socket.setblocking(False)
        self.socket, self.channel = run_socket, None
        theirs = [far_run.detach()]
        try:
            theirs.append(memory_file(stdin))
            for name in ("stdout", "stderr"):
                read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                os.set_blocking(write, True)
                self._watch(read, name)
                theirs.append(write)
            if own:
                self.channel, far = socket.socketpair()
                self.channel.setblocking(False)
                self._watch(self.channel.fileno(), "channel")
                theirs.append(far.detach())
            elif link is not None:
                theirs.append(os.dup(link.fileno()))
            theirs.append(memory_file(payload))
            if own and link is not None:
                theirs.append(os.dup(link.fileno()))
            self._watch(run_socket.fileno(), "run")
            server.submit(request, theirs)
        except BaseException:  # even Ctrl-C must not leave the descriptors open
            self.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def _watch(self, fd: int, name: str) -> None:
        self._fds[fd] = name
        self._poller.add(fd, self)

    def _forget(self, fd: int) -> None:
        self._poller.remove(fd)
        name = self._fds.pop(fd)
        if name in ("stdout", "stderr"):
            os.close(fd)

    def __enter__(self) -> ChildRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for fd in [fd for fd, name in self._fds.items() if name in ("stdout", "stderr")]:
            self._forget(fd)
        if self.channel is not None:
            self.channel.close()
        self.socket.close()

    # what the owner asks for

    def wait_ready(self) -> None:
        """Until the walls are up. SandboxFault when they cannot be built."""
        self._run_until(lambda: self.pid > 0, self.started + SETUP_SECONDS)
        if not self.pid:
            raise SickServer("the run did not start in time")

    def receive(self, cap: int, cpu_s: float | None = None) -> Any:
        """The next frame's content, or None when the process ended or was ended first (see `ending`)."""
        self.start_clock()
        self._inbox_cap = cap + CHUNK
        self._run_until(lambda: self._frame_ready(cap), None, cpu_s or self.limits.cpu_s)
        if self.ending is not None and not self._frame_ready(cap):
            return None
        (length,) = LENGTH.unpack_from(self.inbox)
        body = bytes(self.inbox[4 : 4 + length])
        del self.inbox[: 4 + length]
        try:
            return unpack(body)
        except FrameError as error:
            self.end(GradeStatus.RUNTIME_ERROR, str(error))
            return None

    def ask(self, question: Any, cap: int, cpu_s: float | None = None) -> Any:
        """Sends a frame and waits for the answer, under a deadline of its own. Bytes that follow the last answer end
        the run; such bytes still on their way would only be a wrong answer to this question."""
        if self.inbox:
            self.end(GradeStatus.RUNTIME_ERROR, "the program wrote to the result channel")
            return None
        self.outbox += pack(question)
        return self.receive(cap, cpu_s)

    def wait_end(self, cpu_s: float | None = None) -> Ending:
        """Until the process has ended; its remaining output is in `stdout` and `stderr`."""
        self.start_clock()
        self._run_until(lambda: self._exited, None, cpu_s or self.limits.cpu_s)
        if self.ending is None:
            raise SandboxFault("a run ended without a status")
        return self.ending

    def leftover_frame(self, cap: int) -> Any:
        """A complete frame that is already here, else None."""
        if len(self.inbox) < 4:
            return None
        (length,) = LENGTH.unpack_from(self.inbox)
        if length > cap or len(self.inbox) < 4 + length:
            return None
        try:
            return unpack(bytes(self.inbox[4 : 4 + length]))
        except FrameError:
            return None

    def end(self, status: GradeStatus, detail: str) -> None:
        """Kills the run for a reason; the first reason stays."""
        if self.ending is None:
            self.ending = Ending(status, detail)

    def settle(self, seconds: float = 2.0) -> None:
        """Waits a moment for a process that is about to end by itself."""
        self._run_until(lambda: self._exited, time.monotonic() + seconds)

    def reap(self) -> None:
        """Kills what still runs and waits until nothing is left of it."""
        if self._exited:
            return
        self.socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + REAP_SECONDS
        while not self._exited:
            if time.monotonic() > deadline:
                raise SickServer("the fork server does not end a run")
            self._poller.wait(1.0)

    # the loop

    def start_clock(self) -> None:
        self._wall_start = time.monotonic()
        for run in self._poller.runs:
            run._cpu_start = run.cpu_used()

    def cpu_used(self) -> float:
        """CPU seconds of the child's whole life, from the kernel's per-process clock; 0.0 once it is gone."""
        if not self.pid:
            return 0.0
        try:
            return time.clock_gettime(~self.pid << 3 | 2)
        except OSError:
            return 0.0

    def waited_for_cpu(self) -> float:
        """Seconds that the child was ready to run and others had the processor: not its fault, so not in its wall
        time."""
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _run_until(self, done: Callable[[], bool], deadline: float | None, cpu_s: float = 0.0) -> None:
        """Serves descriptors until `done`, an end of this run, or a limit: `deadline` (monotonic; returns), else
        `cpu_s` of CPU time of any run of the poller, or three times that and two seconds of wall time (ends the run).
        The time that a run waits for a busy processor is not counted, up to ten times the wall time."""
        wall = deadline if deadline is not None else self._wall_start + 3 * cpu_s + 2
        last = wall if deadline is not None else self._wall_start + 30 * cpu_s + 20
        check = wall if deadline is not None else self._wall_start + cpu_s
        while self.ending is None and not done():
            now = time.monotonic()
            if now >= check:
                if deadline is not None:
                    return
                used = max(max(0.0, run.cpu_used() - run._cpu_start) for run in self._poller.runs)
                allowed = min(last, wall + max(run.waited_for_cpu() for run in self._poller.runs))
                if used >= cpu_s or now >= allowed:
                    self.end(GradeStatus.TIMEOUT, f"{cpu_s:g} s")
                    break
                check = min(allowed, now + max(cpu_s - used, 0.002))
            if self.outbox:
                self._send()
            self._poller.wait(check - now)
        if self.ending is not None:
            self.reap()

    def handle(self, fd: int) -> None:
        name = self._fds.get(fd)
        if name == "run":
            self._run_message(fd)
        elif name == "channel":
            self._send()
            self._drain("channel")
        elif name is not None:
            self._drain(name)

    def _send(self) -> None:
        if self.channel is None or self.channel.fileno() not in self._fds:
            self.outbox.clear()
            return
        try:
            while self.outbox:
                del self.outbox[: self.channel.send(self.outbox)]
            self._poller.want_write(self.channel.fileno(), False)
        except BlockingIOError:
            self._poller.want_write(self.channel.fileno(), True)
        except OSError:
            self.outbox.clear()  # the other side hung up; its end says why

    def _frame_ready(self, cap: int) -> bool:
        if len(self.inbox) < 4:
            return False
        (length,) = LENGTH.unpack_from(self.inbox)
        if length > cap:
            self.end(GradeStatus.OUTPUT_LIMIT, "result")
            return False
        return len(self.inbox) >= 4 + length

    def _drain(self, name: str) -> None:
        """Reads what is there, never waits for more."""
        fd = next((fd for fd, watched in self._fds.items() if watched == name), None)
        while fd is not None:
            try:
                data = os.read(fd, CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._forget(fd)
                return
            self._keep(name, data)
            if len(data) < CHUNK or name == "channel" and len(self.inbox) > CHUNK:
                return

    def _keep(self, name: str, data: bytes) -> None:
        if name == "channel":
            self.inbox += data
            if len(self.inbox) > self._inbox_cap + CHUNK:
                self.end(GradeStatus.OUTPUT_LIMIT, "result")
            return
        kept: bytearray = getattr(self, name)
        room = self._caps[name] - len(kept)
        kept += data[: max(room, 0)]
        if len(data) > room:
            self._dropped += len(data) - max(room, 0)
            if name == "stdout" and not self._drop_stdout:
                self.end(GradeStatus.OUTPUT_LIMIT, "stdout")
            elif self._dropped > FLOOD_BYTES:
                self.end(GradeStatus.OUTPUT_LIMIT, name)

    def _run_message(self, fd: int) -> None:
        try:
            message, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
        except BlockingIOError:
            return
        except OSError as error:
            raise SandboxFault(f"run socket: {error}") from None
        kind = message[:1]
        if kind == b"R" and not self.pid:
            self.pid = next((struct.unpack("iii", data)[0] for _, what, data in ancillary if what == 2), -1)
        elif kind == b"X" and self.pid:
            self._forget(fd)
            self._exited = True
            self._last_output()
            status, cpu, rss_kb = ENDING.unpack(message[1:])
            used = {"cpu_s": cpu, "max_rss_mb": rss_kb / 1024}
            if self.ending is not None:  # the owner's reason stays
                self.ending = replace(self.ending, exit_code=os.waitstatus_to_exitcode(status), **used)
            else:
                self.ending = replace(ending_of(status, cpu, self.limits, self.hard_cpu), **used)
        elif kind == b"E":
            raise SandboxFault(message[1:].decode(errors="replace"))
        else:
            raise SandboxFault(
                "the fork server died" if not message else f"the run ended before its walls were up: {message!r}"
            )

    def _last_output(self) -> None:
        for name in ("stdout", "stderr", "channel"):
            for _ in range(64):
                before = self._dropped + len(self.stdout) + len(self.stderr) + len(self.inbox)
                self._drain(name)
                if before == self._dropped + len(self.stdout) + len(self.stderr) + len(self.inbox):
                    break
