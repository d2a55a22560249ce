"""The fork server: `python -I -S -X utf8 -c "..." CONTROL_FD`. Builds the outer walls, then forks one child per
request.

It never sees a payload: programs and inputs travel in descriptors that only the child reads, so nothing of one run is
in the memory that the next one inherits. Requests arrive on a SOCK_SEQPACKET socket, one JSON message with the run's
descriptors: [run socket, stdin, stdout, stderr, channel, payload(, link)]. On the run socket the child says R (walls
are up), the server says E (could not start) or X (ended: wait status and resource use); its end of file means: kill
the run.
"""

from __future__ import annotations

import _signal
import contextlib
import gc
import importlib
import json
import operator
import os
import select
import signal
import socket
import sys
import threading
import traceback

from . import detect, judge, kernel, memory_import, namespaces, program, remote_solver, solver, stage
from .plan import ENDING, REQUEST, Features, Plan
from .walls import THREAD_STACK, Walls, high_fd, make_ruleset

_MODULES = """
abc array ast base64 binascii bisect builtins calendar cmath codecs collections collections.abc contextlib copy ctypes
dataclasses datetime decimal enum errno fractions functools gc heapq importlib inspect io itertools json
keyword linecache locale math numbers operator os pprint queue random re reprlib resource select signal socket
stat statistics string struct sys textwrap threading time timeit token tokenize traceback types typing unicodedata
unittest warnings weakref zlib
"""
STANDARD_MODULES = _MODULES.split()
MAINS = (program.run, solver.run, remote_solver.run, judge.run)  # in the order of plan.KINDS
STATUS_TEXT_LIMIT = 2000
SCHED_BATCH = 3
FIRST_RECEIVED = 16  # above the descriptors 0 to 6 of a child
PROGRAM_BROKE = 70  # exit status of an interpreter that its program broke


class Server:
    """The loop is plain on purpose: after a fork every page it writes to is copied, so few objects are touched."""

    def __init__(self, control: socket.socket, plan: Plan, features: Features, proc_fd: int, ruleset: int) -> None:
        self.control = control
        self.parent_seen_by_child = 0 if features.namespaces else os.getpid()
        self.walls = Walls(plan, features, proc_fd, ruleset)
        self.slots = list(range(plan.slots))
        self.runs: dict[int, tuple[int, int]] = {}  # process id -> run socket, slot
        self.watched: dict[int, int] = {}  # run socket -> process id
        self.poll = select.epoll()
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.signal(signal.SIGCHLD, operator.is_)  # any C function of two arguments: the wake-up pipe is what counts
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for fd in (control.fileno(), self.wake_read):
            self.poll.register(fd, select.EPOLLIN)
        while (taken := os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)) < FIRST_RECEIVED:
            continue  # so that a run's descriptors arrive above the numbers they get in the child
        os.close(taken)

    def serve(self) -> None:
        parent, control = os.getppid(), self.control.fileno()
        while os.getppid() == parent:
            ready = [fd for fd, _ in self.poll.poll(5.0)]
            for fd in ready:  # first, while the numbers still mean what they meant to poll()
                if fd in self.watched:
                    os.kill(self.watched[fd], signal.SIGKILL)
                    self._unwatch(fd)
            if self.wake_read in ready:
                os.read(self.wake_read, 4096)
                self._reap()
            if control in ready and not self._accept():
                return

    def _accept(self) -> bool:
        message, ancillary, _, _ = self.control.recvmsg(4096, 64, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return False
        fds = memoryview(ancillary[0][2]).cast("i").tolist()
        try:
            self._start(REQUEST.unpack(message), fds)
        except OSError as error:
            send(fds[0], b"E" + str(error).encode()[:STATUS_TEXT_LIMIT])
            os.close(fds[0])
        for fd in fds[1:]:
            os.close(fd)
        return True

    def _start(self, request: tuple[int, ...], fds: list[int]) -> None:
        if not self.slots:
            raise OSError(11, "no free slot in the fork server")
        slot = self.slots.pop()
        self.walls.refresh_task_count()
        try:
            pid = self.walls.clone()
        except OSError:
            self.slots.append(slot)
            raise
        if pid == 0:
            child(self.walls, request, slot, fds, self.parent_seen_by_child)
        self.runs[pid] = (fds[0], slot)
        self.watched[fds[0]] = pid
        self.poll.register(fds[0], select.EPOLLRDHUP)

    def _unwatch(self, fd: int) -> None:
        """Explicitly: closing is not enough while a child that is just starting holds a copy of the descriptor."""
        if self.watched.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def _reap(self) -> None:
        while self.runs:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self.runs:
                continue
            fd, slot = self.runs.pop(pid)
            self.slots.append(slot)
            self._unwatch(fd)
            send(fd, b"X" + ENDING.pack(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))
            os.close(fd)


def send(run_socket: int, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the asker may have gone
        os.write(run_socket, message)


def child(walls: Walls, request: tuple[int, ...], slot: int, fds: list[int], server: int) -> None:
    """Never returns. Descriptors become 0 stdin, 1 stdout, 2 stderr, 3 channel, 4 payload, 5 link; the run socket is
    last."""
    report, last = fds[0], len(fds) - 1
    kind, cpu_seconds, memory_mb, scratch_mb = request
    try:
        signal.set_wakeup_fd(-1)
        _signal.signal(signal.SIGCHLD, _signal.SIG_DFL)
        for number in range(last):
            os.dup2(fds[number + 1], number)
        os.dup2(report, last)
        report = last
        walls.confine(slot, cpu_seconds, memory_mb, scratch_mb, last + 1, server)
        walls.seal()
        os.write(last, b"R")
        os.close(last)
    except BaseException as error:  # any fault before foreign code runs is the sandbox's own
        os.write(report, b"E" + f"{type(error).__name__}: {error}".encode()[:STATUS_TEXT_LIMIT])
        os._exit(PROGRAM_BROKE)
    try:
        MAINS[kind]()
    except BaseException:  # only a program that broke its own interpreter gets here
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(PROGRAM_BROKE)


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
    os.sched_setscheduler(0, SCHED_BATCH, os.sched_param(0))  # its children too
    stage.know_streams()
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
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.stack_size(THREAD_STACK)
    sys.set_int_max_str_digits(0)  # the CPU limit of a run is limit enough
    stage.prepare()
    gc.collect()
    gc.freeze()
    server.serve()


def wait_for_server(control: socket.socket, pid: int) -> None:
    """The outer process only waits: when the server ends, so does everything in its process namespace. It also notices
    when the grader is gone although some fork of the grader still holds the socket open."""
    control.close()
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if os.getppid() != parent:
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 2.0)
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
