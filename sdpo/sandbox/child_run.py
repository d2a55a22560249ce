"""One child process seen from the grader: descriptors, frames, deadlines, output caps, and how it ended.

Everything happens in the calling thread; there is no event loop to share. The run's socket is its life line: the
server kills the run when this end closes, also when the grader itself is killed.
"""

from __future__ import annotations

import contextlib
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
        poller: Poller[ChildRun] | None = None,
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
        self._exited = self._by_itself = False
        self._fds: dict[int, str] = {}
        self._poller: Poller[ChildRun] = poller or Poller()
        self._poller.runs.append(self)
        self._cpu_seen = self._cpu_start = 0.0
        self._waited = 0.0  # for this run, since its first deadline began
        self._idle_limit = limits.idle_s(tests)
        self.idle_s = 0.0
        self._inbox_cap = CHUNK
        self.started = time.monotonic()
        self._submit(server, kind, payload, stdin, link, own_channel)

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
        self._serve(lambda: self.pid > 0, SETUP_SECONDS)
        if not self.pid:
            raise SickServer("the run did not start in time")

    def receive(self, cap: int) -> Any:
        """The next frame's content, or None when the process ended or was ended first (see `ending`)."""
        self._inbox_cap = cap + CHUNK
        self._run_until(lambda: self._frame_ready(cap))
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

    def ask(self, question: Any, cap: int) -> Any:
        """Sends a frame and waits for the answer, under a deadline of its own. Bytes that follow the last answer end
        the run; such bytes still on their way would only be a wrong answer to this question."""
        if self.inbox:
            self.end(GradeStatus.RUNTIME_ERROR, "the program wrote to the result channel")
            return None
        self.outbox += pack(question)
        return self.receive(cap)

    def wait_end(self) -> Ending:
        """Until the process has ended; its remaining output is in `stdout` and `stderr`."""
        self._run_until(lambda: self._exited)
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

    def synchronize(self, seconds: float = 2.0) -> None:
        """Waits a moment for a process that is about to end by itself."""
        self._serve(lambda: self._exited, seconds)

    def reap(self) -> None:
        """Kills what still runs and waits until nothing is left of it."""
        if self._exited:
            return
        self.socket.shutdown(socket.SHUT_WR)
        patience = REAP_SECONDS
        while not self._exited:
            if patience < 0:
                raise SickServer("the fork server does not end a run")
            patience -= self._poller.wait(1.0)

    # the loop

    def cpu_used(self) -> float:
        """CPU seconds of the child's whole life, from the kernel's per-process clock; the last reading once it is
        gone."""
        if self.pid > 0 and not self._exited:
            with contextlib.suppress(OSError):
                self._cpu_seen = time.clock_gettime(~self.pid << 3 | 2)
        return self._cpu_seen

    def waited_for_cpu(self) -> float:
        """Seconds that the child was ready to run and others had the processor: not its fault, so not in its wall
        time."""
        try:
            with open(f"/proc/{self.pid}/schedstat", "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def _serve(self, done: Callable[[], bool], seconds: float) -> float:
        """Serves descriptors until `done`, an end of this run, or the time is up; returns the time that it took."""
        waited = 0.0
        while self.ending is None and not done() and waited < seconds:
            if self.outbox:
                self._send()
            waited += self._poller.wait(seconds - waited)
        return waited

    def _run_until(self, done: Callable[[], bool]) -> None:
        """Serves descriptors until `done`, an end of this run, or a limit, which ends the run: `cpu_s` of CPU time of
        any run of the poller; three times that and two seconds of wall time, not counting the time that a run waits
        for a busy processor, up to ten times the wall time; or what all tests together may idle.

        What has arrived is read before a clock is looked at, and only time spent waiting counts: a grader that is
        itself held up takes neither the answer nor the time from a run."""
        limits = self.limits
        for run in self._poller.runs:
            run._cpu_start = run.cpu_used()
        before, check = self._waited, limits.cpu_s
        while True:
            self._waited += self._serve(done, check - (self._waited - before))
            if self._waited - before >= check:
                self._read_rest(done)
            used = max(run.cpu_used() - run._cpu_start for run in self._poller.runs)
            if self._exited and self.ending is not None:
                used = max(used, self.ending.cpu_s - self._cpu_start)
            if used >= limits.cpu_s:
                self._overrun(f"{limits.cpu_s:g} s")
            if self.ending is not None or done() and self._waited <= self._idle_limit:
                break
            queued = max(run.waited_for_cpu() for run in self._poller.runs)
            allowed = min(limits.longest_s, limits.wall_s + queued)
            self.idle_s = self._waited - queued - max(run.cpu_used() for run in self._poller.runs)
            if self._waited - before >= allowed:
                self._overrun(f"{limits.cpu_s:g} s")
            elif self.idle_s > self._idle_limit:
                self._overrun(f"{self.idle_s:.1f} s asleep")
            elif done():
                break
            check = min(allowed, self._waited - before + max(limits.cpu_s - used, 0.002))
        if self.ending is not None:
            self.reap()

    def _read_rest(self, done: Callable[[], bool]) -> None:
        """What lies ready in the descriptors, and no more than an answer can be."""
        for _ in range(256):
            before = self._received()
            self._poller.wait(0.0)
            if self.ending is not None or done() or self._received() == before:
                return

    def _received(self) -> int:
        return self._dropped + len(self.stdout) + len(self.stderr) + len(self.inbox)

    def _overrun(self, detail: str) -> None:
        """Ends the run as over time, also where it has ended by itself meanwhile. An answer that came with that is
        none."""
        if self.ending is None or self._by_itself:
            self.ending = replace(self.ending or Ending(GradeStatus.OK), status=GradeStatus.TIMEOUT, detail=detail)
            self.inbox.clear()

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
                charged = (time.monotonic() - self.started) * (os.cpu_count() or 1)
                self.ending = replace(ending_of(status, self.limits, charged >= self.hard_cpu), **used)
                self._by_itself = True
        elif kind == b"E":
            raise SandboxFault(message[1:].decode(errors="replace"))
        else:
            raise SandboxFault(
                "the fork server died" if not message else f"the run ended before its walls were up: {message!r}"
            )

    def _last_output(self) -> None:
        for name in ("stdout", "stderr", "channel"):
            for _ in range(64):
                before = self._received()
                self._drain(name)
                if before == self._received():
                    break
