"""The inner walls: what every child puts around itself before the first line of foreign code."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import struct
import time

from . import kernel, landlock, namespaces, seccomp
from .plan import Features, Plan

PID_PLACEHOLDER = 0x7ABCDEF1
STACK_BYTES = 64 << 20
THREADS, THREAD_STACK = 64, 2 << 20  # of one run; a thread's stack is address space, used or not
SCRATCH_MB = 16  # the usual size, prepared beforehand


class Walls:
    """Prepared once in the server, in the namespaces; `confine` runs in each child. `ruleset`: see `make_ruleset`."""

    def __init__(self, plan: Plan, features: Features, proc_fd: int, ruleset: int) -> None:
        self.plan = plan
        self.features = features
        self.proc_fd = proc_fd
        self.base_bytes = own_address_space(proc_fd)
        self.clone = kernel.Clone(
            (kernel.CLONE_NEWPID if features.namespaces else 0) | (kernel.CLONE_NEWNS if features.mounts else 0)
        )
        self._uids = [self._run_uid(slot) for slot in range(plan.slots)]
        self._scratch = {(uid, SCRATCH_MB): namespaces.scratch_mount(SCRATCH_MB, uid) for uid in set(self._uids)}
        self._tasks = (0.0, 0)
        self._prepare(ruleset)

    def _prepare(self, ruleset: int) -> None:
        if self.features.slot_uids:
            os.setgroups([])  # for the children
        self._last_steps = [
            *([] if self.features.slot_uids else [kernel.drop_capabilities()]),  # a new user id drops them by itself
            kernel.prepared_prctl(kernel.PR_SET_DUMPABLE, 0),
            # After the last change of identity, which clears it.
            kernel.prepared_prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL),
            kernel.prepared_prctl(kernel.PR_SET_NO_NEW_PRIVS, 1),
        ]
        if ruleset >= 0:
            self._last_steps.append(landlock.prepared_restrict(ruleset))
        paths = self.features.mounts or self.features.landlock > 0
        # In a process namespace of its own every run is process 1; elsewhere the filter gets the number in `seal`.
        self._known_pid = 1 if self.features.namespaces else PID_PLACEHOLDER
        policy = seccomp.Policy(self._known_pid, paths)
        self._filter = kernel.Filter(seccomp.build(policy)) if self.features.seccomp else None
        self._close = {keep: kernel.Prepared("close_range", keep, 0xFFFFFFFF, 0) for keep in range(4, 9)}
        fixed = {
            resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_STACK: STACK_BYTES,
        }
        self._fixed_limits = [prepared_limit(kind, within_hard(kind, value)) for kind, value in fixed.items()]
        varying = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
        self._hard = [resource.getrlimit(kind)[1] for kind in varying]

    def confine(self, slot: int, cpu_seconds: int, memory_mb: int, scratch_mb: int, keep: int, server: int) -> None:
        """Everything but the filter (`seal`). `keep`: descriptors below this number stay open. `server`: expected
        parent, 0 where it is outside this process namespace."""
        features = self.features
        os.setsid()  # groups cross process namespaces: kill(0, ...) must not reach the server
        uid = self._uids[slot]
        if features.mounts:
            (self._scratch.get((uid, scratch_mb)) or namespaces.scratch_mount(scratch_mb, uid))()
        os.chdir(namespaces.SCRATCH if features.mounts else self.plan.empty_directory)
        if features.nested_user:
            kernel.unshare(kernel.CLONE_NEWUSER)
            namespaces.map_single(self.proc_fd, 1000, 0, 0)
        self._limits(cpu_seconds, memory_mb, scratch_mb)
        if features.slot_uids:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        for step in self._last_steps:
            step()
        if os.getppid() != server:
            os._exit(1)  # the server died before it could take this process along
        self._close_from(keep)

    def _close_from(self, keep: int) -> None:
        try:
            self._close[keep]()
        except (OSError, KeyError):
            os.closerange(keep, 4096)  # kernels before 5.9

    def _run_uid(self, slot: int) -> int:
        if not self.features.slot_uids:
            return 0
        return slot + 1 if self.features.user == "range" else self.plan.uid_base + slot + 1

    def seal(self) -> None:
        """The filter; from here on the process cannot change anything about its walls."""
        if self._filter is None:
            return
        if self._known_pid == PID_PLACEHOLDER:
            self._filter.replace(struct.pack("<I", PID_PLACEHOLDER), struct.pack("<I", os.getpid()))
        self._filter.install()

    def _limits(self, cpu_seconds: int, memory_mb: int, scratch_mb: int) -> None:
        """Hard = soft everywhere: the first process of a namespace ignores SIGXCPU."""
        for limit in self._fixed_limits:
            limit()
        memory, cpu, file, tasks = self._hard
        own = memory_mb << 20
        set_limit(resource.RLIMIT_AS, self.base_bytes + own + min(own, THREADS * THREAD_STACK), memory)
        set_limit(resource.RLIMIT_CPU, cpu_seconds, cpu)
        set_limit(resource.RLIMIT_FSIZE, scratch_mb << 20, file)
        set_limit(resource.RLIMIT_NPROC, self._task_limit(), tasks)

    def _task_limit(self) -> int:
        """Without a user id or namespace of its own the kernel counts every task of the user."""
        others = 0 if self.features.slot_uids or self.features.nested_user else self._tasks[1]
        return others + 1 + THREADS

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


def prepared_limit(kind: int, value: int) -> kernel.Prepared:
    return kernel.Prepared("prlimit64", 0, kind, struct.pack("<QQ", value, value), None)


def set_limit(kind: int, value: int, hard: int) -> None:
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def within_hard(kind: int, value: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def high_fd(fd: int) -> int:
    """Moves a long-lived descriptor above the numbers that a child's dup2() uses."""
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
