"""The inner walls: what every child puts around itself before the first line of foreign code."""

from __future__ import annotations

import os
import resource
import signal
import struct
import time

from . import kernel, landlock, namespaces, seccomp
from .plan import Features, Plan

PID_PLACEHOLDER = 0x7ABCDEF1
BATCH = 3  # SCHED_BATCH
STACK_BYTES = 64 << 20


class Walls:
    """Prepared once in the server, in the namespaces; `confine` runs in each child. `ruleset`: see `make_ruleset`."""

    def __init__(self, plan: Plan, features: Features, proc_fd: int, ruleset: int) -> None:
        self.plan = plan
        self.features = features
        self.proc_fd = proc_fd
        paths = features.mounts or features.landlock > 0
        self.filter = seccomp.build(seccomp.Policy(PID_PLACEHOLDER, paths)) if features.seccomp else b""
        self.ruleset = ruleset
        self.base_bytes = own_address_space(proc_fd)
        self._tasks = (0.0, 0)

    def confine(self, slot: int, cpu_seconds: int, memory_mb: int, scratch_mb: int, keep: int, server: int) -> None:
        """Everything but the filter (`seal`). `keep`: descriptors below this number stay open. `server`: expected
        parent, 0 where it is outside this process namespace."""
        features = self.features
        os.setsid()  # groups cross process namespaces: kill(0, ...) must not reach the server
        uid = self._run_uid(slot)
        if features.mounts:
            namespaces.mount_scratch(scratch_mb, uid, uid)
        os.chdir(namespaces.SCRATCH if features.mounts else self.plan.empty_directory)
        if features.nested_user:
            kernel.unshare(kernel.CLONE_NEWUSER)
            namespaces.map_single(self.proc_fd, 1000, 0, 0)
        os.sched_setscheduler(0, BATCH, os.sched_param(0))
        self._limits(cpu_seconds, memory_mb, scratch_mb)
        if features.slot_uids:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the last change of identity, which clears it
        if os.getppid() != server:
            os._exit(1)  # the server died before the line above
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        if self.ruleset >= 0:
            landlock.restrict(self.ruleset)
        kernel.close_from(keep)

    def _run_uid(self, slot: int) -> int:
        if not self.features.slot_uids:
            return 0
        return slot + 1 if self.features.user == "range" else self.plan.uid_base + slot + 1

    def seal(self) -> None:
        """The filter; from here on the process cannot change anything about its walls."""
        if self.filter:
            placeholder, pid = struct.pack("<I", PID_PLACEHOLDER), struct.pack("<I", os.getpid())
            kernel.install_filter(self.filter.replace(placeholder, pid))

    def _limits(self, cpu_seconds: int, memory_mb: int, scratch_mb: int) -> None:
        memory = self.base_bytes + (memory_mb << 20)
        for kind, value in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_CPU, cpu_seconds),  # hard = soft: SIGXCPU is ignored by the first process of a namespace
            (resource.RLIMIT_FSIZE, scratch_mb << 20),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_NPROC, self._task_limit()),
            (resource.RLIMIT_STACK, STACK_BYTES),
        ):
            hard = resource.getrlimit(kind)[1]
            if hard != resource.RLIM_INFINITY and value > hard:
                value = hard
            resource.setrlimit(kind, (value, value))

    def _task_limit(self) -> int:
        """64 threads a run. Without a user id or namespace of its own the kernel counts every task of the user."""
        if self.features.slot_uids or self.features.nested_user:
            return 64
        return self._tasks[1] + 64

    def refresh_task_count(self) -> None:
        """Counts the user's tasks, at most once a second; called by the server before it forks."""
        if self.features.slot_uids or self.features.nested_user or time.monotonic() - self._tasks[0] < 1.0:
            return
        self._tasks = (time.monotonic(), count_tasks(self.proc_fd, os.getuid()))


def make_ruleset(plan: Plan, features: Features) -> int:
    """The Landlock rules of every run; -1 where there is no Landlock. In a root of its own the tree is already
    minimal; without one this has to be called before the namespaces are entered, because a mapped root may not reach
    the interpreter."""
    version = features.landlock
    if not version:
        return -1
    ruleset = high_fd(landlock.create(version))
    if features.mounts:
        landlock.allow(ruleset, "/", landlock.READ)
        landlock.allow(ruleset, namespaces.SCRATCH_PARENT, landlock.all_rights(version) & ~landlock.EXECUTE)
    else:
        files = [path for tree in plan.trees for path in visible(tree, plan.covers)] + plan.packages
        landlock.allow_all(ruleset, ((path, landlock.READ) for path in files))
        landlock.allow_all(ruleset, ((path, landlock.READ_DIR) for path in [*plan.package_roots, *plan.trees]))
        landlock.allow(ruleset, plan.empty_directory, landlock.READ_DIR if plan.empty_directory != "/" else 0)
    writable = landlock.READ_FILE | landlock.WRITE_FILE
    landlock.allow_all(ruleset, ((path, writable) for path in namespaces.DEVICES[:2]))
    landlock.allow_all(ruleset, ((path, landlock.READ_FILE) for path in namespaces.DEVICES[2:]))
    return ruleset


def visible(tree: str, covers: list[str]) -> list[str]:
    """The entries of a tree that lie outside the hidden directories; the tree itself where none is hidden in it."""
    if not any(cover.startswith(tree + "/") for cover in covers):
        return [tree]
    return [path for name in os.listdir(tree) if (path := f"{tree}/{name}") not in covers]


def high_fd(fd: int) -> int:
    """Moves a long-lived descriptor above the numbers that a child's dup2() uses."""
    import fcntl

    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 300)
    os.close(fd)
    return moved


def own_address_space(proc_fd: int) -> int:
    fd = os.open("self/statm", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        return int(os.read(fd, 200).split()[0]) * resource.getpagesize()
    finally:
        os.close(fd)


def count_tasks(proc_fd: int, uid: int) -> int:
    total = 0
    for name in os.listdir(proc_fd):
        if not name.isdigit():
            continue
        try:
            if os.stat(name, dir_fd=proc_fd).st_uid != uid:
                continue
            total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue  # ended meanwhile
    return total
