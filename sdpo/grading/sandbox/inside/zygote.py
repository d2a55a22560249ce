"""The fork server: `python -I -S -X utf8 -c "..." CONTROL_FD`. Builds the outer walls, then forks one child per
request.

It never sees a payload: programs and inputs travel in descriptors that only the child reads, so nothing of one run is
in the memory that the next one inherits. Requests arrive on a SOCK_SEQPACKET socket, one JSON message with the run's
descriptors: [run socket, stdin, stdout, stderr, channel, payload(, link)]. On the run socket the child says R (walls
are up), the server says E (could not start) or X (ended: wait status and resource use); its end of file means: kill
the run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass

from . import detect, judge, kernel, memory_import, namespaces, program, remote_solver, solver
from .plan import Features, Plan
from .walls import Walls, high_fd, make_ruleset

_MODULES = """
abc array ast base64 binascii bisect builtins calendar cmath codecs collections collections.abc contextlib copy ctypes
dataclasses datetime decimal enum errno fractions functools gc hashlib heapq importlib inspect io itertools json
keyword linecache locale math numbers operator os pprint queue random re reprlib resource secrets select signal socket
stat statistics string struct sys textwrap threading time timeit token tokenize traceback types typing unicodedata
unittest.mock unittest uuid warnings weakref zlib
"""
STANDARD_MODULES = _MODULES.split()
MAINS = {"program": program.main, "solver": solver.main, "remote": remote_solver.main, "judge": judge.main}
STATUS_TEXT_LIMIT = 2000


@dataclass
class Run:
    pid: int
    slot: int
    socket: socket.socket
    watched: bool = True


class Server:
    def __init__(self, control: socket.socket, plan: Plan, features: Features, proc_fd: int, ruleset: int) -> None:
        self.control = control
        self.pid = os.getpid()
        self.features = features
        self.walls = Walls(plan, features, proc_fd, ruleset)
        self.slots = list(range(plan.slots))
        self.runs: dict[int, Run] = {}  # by pid
        self.by_socket: dict[int, Run] = {}
        self.own_pid_ns = (
            high_fd(os.open("self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)) if features.namespaces else -1
        )
        self.poll = select.epoll()
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for fd in (control.fileno(), self.wake_read):
            self.poll.register(fd, select.EPOLLIN)

    def serve(self) -> None:
        parent = os.getppid()
        while os.getppid() == parent:
            ready = [fd for fd, _ in self.poll.poll(5.0)]
            for fd in ready:  # first, while the numbers still mean what they meant to poll()
                if fd in self.by_socket:
                    self._kill(self.by_socket[fd])
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
                self._reap()
            if self.control.fileno() in ready and not self._accept():
                return

    def _accept(self) -> bool:
        message, ancillary, _, _ = self.control.recvmsg(65536, socket.CMSG_SPACE(4 * 8), socket.MSG_CMSG_CLOEXEC)
        fds = [fd for _, _, data in ancillary for fd in memoryview(data).cast("i")]
        if not message:
            return False
        request = json.loads(message)
        run_socket = socket.socket(fileno=fds[0])
        try:
            self._start(request, run_socket, fds[1:])
        except OSError as error:
            send(run_socket, b"E" + str(error).encode()[:STATUS_TEXT_LIMIT])
            run_socket.close()
        for fd in fds[1:]:
            os.close(fd)
        return True

    def _start(self, request: dict, run_socket: socket.socket, fds: list[int]) -> None:
        if not self.slots:
            raise OSError(11, "no free slot in the fork server")
        slot = self.slots.pop()
        self.walls.refresh_task_count()
        pid = -1
        try:
            if self.features.namespaces:
                kernel.unshare(kernel.CLONE_NEWPID)
            pid = os.fork()
        finally:
            if pid == 0:
                child(self.walls, request, slot, run_socket, fds, 0 if self.features.namespaces else self.pid)
            if self.features.namespaces:
                kernel.setns(self.own_pid_ns, kernel.CLONE_NEWPID)
            if pid < 0:
                self.slots.append(slot)
        run = Run(pid, slot, run_socket)
        self.runs[pid] = self.by_socket[run_socket.fileno()] = run
        self.poll.register(run_socket.fileno(), select.EPOLLRDHUP)

    def _kill(self, run: Run) -> None:
        self._unwatch(run)
        os.kill(run.pid, signal.SIGKILL)

    def _unwatch(self, run: Run) -> None:
        """Explicitly: closing is not enough while a child that is just starting holds a copy of the descriptor."""
        if run.watched:
            run.watched = False
            self.poll.unregister(run.socket.fileno())

    def _reap(self) -> None:
        while self.runs:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            run = self.runs.pop(pid, None)
            if run is None:
                continue
            del self.by_socket[run.socket.fileno()]
            self.slots.append(run.slot)
            self._unwatch(run)
            send(run.socket, b"X" + json.dumps([status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss]).encode())
            run.socket.close()


def send(run_socket: socket.socket, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the asker may have gone
        run_socket.send(message, socket.MSG_DONTWAIT)


def child(walls: Walls, request: dict, slot: int, run_socket: socket.socket, fds: list[int], server: int) -> None:
    """Never returns. Descriptors become 0 stdin, 1 stdout, 2 stderr, 3 channel, 4 payload, 5 link; the run socket is
    last."""
    code = 70
    last = len(fds)
    report = run_socket.detach()
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        high = [high_fd(fd) for fd in (*fds, report)]
        for number, fd in enumerate(high):
            os.dup2(fd, number)
        report = last
        walls.confine(slot, request["cpu"], request["memory_mb"], request["scratch_mb"], last + 1, server)
        main = MAINS[request["kind"]](request)
        walls.seal()
        os.write(last, b"R")
        os.close(last)
    except BaseException as error:  # any fault before foreign code runs is the sandbox's own
        os.write(report, b"E" + f"{type(error).__name__}: {error}".encode()[:STATUS_TEXT_LIMIT])
        os._exit(code)
    try:
        main()
    except BaseException:  # only a program that broke its own interpreter gets here
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def import_all(plan: Plan) -> None:
    for name in STANDARD_MODULES:
        importlib.import_module(name)
    sys.path[:] = [*sys.path, *plan.package_roots]
    for name in plan.preload:
        importlib.import_module(name)
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()


def start(control: socket.socket, plan: Plan) -> None:
    proc_fd = high_fd(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # /proc may be read-only
        file.write("1000")
    import_all(plan)
    features = plan.features or detect.find(plan, proc_fd)
    if not features.readable:
        memory_import.install()
        for name in memory_import.NUMPY_PARTS if "numpy" in plan.preload else ():
            importlib.import_module(name)
    ruleset = -1 if features.mounts else make_ruleset(plan, features)
    if features.namespaces:
        namespaces.enter(plan, features.user, features.mounts, proc_fd)
        first = os.fork()
        if first:
            wait_for_server(control, first)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.drop_bounding_set()
    if features.mounts:
        ruleset = make_ruleset(plan, features)
        os.environ["TMPDIR"] = os.environ["HOME"] = namespaces.SCRATCH
    server = Server(control, plan, features, proc_fd, ruleset)
    control.send(json.dumps({"features": features.__dict__, "base_mb": server.walls.base_bytes >> 20}).encode())
    gc.collect()
    gc.freeze()
    server.serve()


def wait_for_server(control: socket.socket, pid: int) -> None:
    """The outer process only waits: when the server ends, so does everything in its process namespace."""
    control.close()
    os.waitpid(pid, 0)
    os._exit(0)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control = socket.socket(fileno=high_fd(control.detach()))
    plan = Plan.from_json(control.recv(1 << 20).decode())
    try:
        start(control, plan)
    except OSError as error:
        traceback.print_exc()  # kept in a file that the grader reads when the server dies
        control.send(json.dumps({"error": str(error)}).encode())
    os._exit(0)
