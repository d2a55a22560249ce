"""The system-call filter: default deny, a binary search over the numbers, arguments checked where a call has a
dangerous form.

Classic BPF; an instruction is (code, jump if true, jump if false, constant). Words of `seccomp_data`: number 0,
architecture 4, argument i at 16 + 8 i (low half first; both supported machines are little-endian).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .syscall_numbers import AUDIT_ARCH, MACHINE, numbers

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 1, 38
LOAD, JEQ, JGE, JSET, JUMP, RETURN = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06
X32_BIT = 0x40000000
FIRST_RECENT = 424  # numbers from here on are younger than the filter's knowledge: ENOSYS makes libc fall back

_PLAIN = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 close close_range lseek dup dup2 dup3 pipe
pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd
eventfd2 sendfile copy_file_range splice tee fsync fdatasync ftruncate fallocate fadvise64 readahead fstat getcwd
umask mmap munmap mprotect mremap brk madvise mincore msync membarrier futex set_robust_list get_robust_list rseq
set_tid_address gettid exit exit_group sched_yield sched_getaffinity sched_getparam sched_getscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval nanosleep clock_nanosleep arch_prctl clock_gettime
clock_getres gettimeofday time times getitimer setitimer alarm timerfd_create timerfd_settime timerfd_gettime
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause signalfd4
restart_syscall getpid getppid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid
uname sysinfo getrlimit getrusage getrandom getcpu getpriority wait4 waitid sendto recvfrom shutdown getsockname
getpeername getsockopt setsockopt
"""
PLAIN = _PLAIN.split()

# By path: where Landlock or a read-only tree stands behind them. The last level has neither and refuses all of them.
_PATHS = """
open openat stat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat chdir fchdir mkdir mkdirat
rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat chmod fchmod fchmodat utimensat utime
utimes futimesat getdents getdents64 statfs fstatfs truncate creat
"""
PATHS = _PATHS.split()

FCNTL = (
    0,
    1,
    2,
    3,
    4,
    1030,
    1032,
)  # dup, flags, pipe size; no owners, leases, locks (a lock is a channel between runs)
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, its size, bytes waiting, close-on-exec
PRCTL = (3, 15, 16, 23, 0x53564D41)  # read-only questions, thread and mapping names
CLONE_THREAD, CLONE_NAMESPACES = 0x10000, 0x7E020080
AT_EMPTY_PATH = 0x1000
SIGKILL = 9


def argument(index: int, high: bool = False) -> tuple[int, int, int, int]:
    return (LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def deny(number: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, 0x50000 | number)


PASS = (RETURN, 0, 0, ALLOW)


def one_of(index: int, values: tuple[int, ...]) -> list:
    """Allowed when the argument is one of the values, else EPERM."""
    code = [argument(index)]
    code += [(JEQ, len(values) - i, 0, value) for i, value in enumerate(values)]
    return [*code, deny(EPERM), PASS]


def _clone() -> list:
    """Threads only: no processes, no namespaces."""
    return [argument(0), (JSET, 0, 2, CLONE_THREAD), (JSET, 1, 0, CLONE_NAMESPACES), PASS, deny(EPERM)]


def _own_pid(signal_argument: int, pid: int) -> list:
    """Signals to the caller itself; never SIGKILL, so that an unexplained SIGKILL always came from outside."""
    return [argument(0), (JEQ, 0, 3, pid), argument(signal_argument), (JEQ, 1, 0, SIGKILL), PASS, deny(EPERM)]


def _socketpair() -> list:
    """Unix stream pairs (event loops need one). A datagram pair could be re-addressed to any socket of the host."""
    return [argument(0), (JEQ, 0, 4, 1), argument(1), (0x54, 0, 0, 0xF), (JEQ, 0, 1, 1), PASS, deny(EPERM)]


def _limits_pretend() -> list:
    """Reading is real; setting succeeds without effect, because programs raise their stack limit and go on."""
    read = [argument(0), (JEQ, 0, 5, 0), argument(2), (JEQ, 0, 4, 0), argument(2, high=True), (JEQ, 0, 2, 0), PASS]
    return [*read, deny(EPERM), deny(0)]


def _stat_of_descriptor() -> list:
    """fstat() is newfstatat(fd, "", AT_EMPTY_PATH) in recent C libraries; plain paths are refused."""
    return [argument(3), (JEQ, 0, 1, AT_EMPTY_PATH), PASS, deny(EPERM)]


@dataclass(frozen=True)
class Policy:
    """What the filter depends on: own process id in its namespace, and whether paths may be used at all."""

    pid: int
    paths: bool = True


def rules(policy: Policy, table: dict[str, int]) -> list[tuple[int, list]]:
    """(number, code that ends in returns) for every call that has a rule, sorted by number."""
    chosen: dict[str, list] = {name: [PASS] for name in PLAIN}
    chosen |= {name: [PASS] if policy.paths else [deny(EPERM)] for name in PATHS}
    if not policy.paths:
        chosen["newfstatat"] = _stat_of_descriptor()
        chosen["statx"] = chosen["faccessat2"] = [deny(ENOSYS)]
    chosen |= {
        "clone": _clone(),
        "clone3": [deny(ENOSYS)],
        "fcntl": one_of(1, FCNTL),
        "ioctl": one_of(1, IOCTL),
        "prctl": one_of(0, PRCTL),
        "kill": _own_pid(1, policy.pid),
        "tgkill": _own_pid(2, policy.pid),
        "socketpair": _socketpair(),
        "prlimit64": _limits_pretend(),
        "setrlimit": [deny(0)],
    }
    return sorted((table[name], code) for name, code in chosen.items() if name in table)


def _ranges(entries: list[tuple[int, list]]) -> list[tuple[int, list]]:
    """Merges neighbours with the same code and fills the gaps with the default: a list of (first number, code)."""
    result: list[tuple[int, list]] = [(0, [deny(EPERM)])]

    def start(number: int, code: list) -> None:
        if result[-1][0] == number:
            result[-1] = (number, code)
        elif result[-1][1] != code:
            result.append((number, code))

    known = dict(entries)
    last = max([*known, FIRST_RECENT]) + 1
    for number in range(last + 1):
        default = [deny(ENOSYS)] if number >= FIRST_RECENT else [deny(EPERM)]
        start(number, known.get(number, default))
    return result


def _tree(ranges: list[tuple[int, list]]) -> list:
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    low, high = _tree(ranges[:middle]), _tree(ranges[middle:])
    if len(low) <= 255:
        return [(JGE, len(low), 0, ranges[middle][0]), *low, *high]
    return [(JGE, 0, 1, ranges[middle][0]), (JUMP, 0, 0, len(low)), *low, *high]


def build(policy: Policy, machine: str = MACHINE) -> bytes:
    """The program for one run, ready to install."""
    body = _tree(_ranges(rules(policy, numbers(machine))))
    arch = AUDIT_ARCH[machine]
    head = [
        (LOAD, 0, 0, 4),
        (JEQ, 1, 0, arch),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, 0),
        (JGE, 0, 1, X32_BIT),
        (RETURN, 0, 0, KILL),
    ]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in [*head, *body])


def simulate(program: bytes, number: int, arguments: tuple[int, ...] = (), arch: int | None = None) -> int:
    """Runs the filter on one call, as the kernel would; returns the raw action. For tests and for reading the table."""
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    words = [number, AUDIT_ARCH[MACHINE] if arch is None else arch, 0, 0]
    for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        words += [value & 0xFFFFFFFF, (value >> 32) & 0xFFFFFFFF]
    at = accumulator = 0
    while True:
        kind, yes, no, constant = code[at]
        at += 1
        if kind == LOAD:
            accumulator = words[constant // 4]
        elif kind == 0x54:
            accumulator &= constant
        elif kind == JUMP:
            at += constant
        elif kind == RETURN:
            return constant
        else:
            met = {JEQ: accumulator == constant, JGE: accumulator >= constant, JSET: bool(accumulator & constant)}[kind]
            at += yes if met else no
