"""Thin ctypes wrappers around the system calls that build the walls. Every failure is an OSError that names the
call."""

from __future__ import annotations

import ctypes
import os
import struct

from .syscall_numbers import MACHINE, numbers

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
NR = numbers(MACHINE) if MACHINE in ("x86_64", "aarch64") else {}


_holding = ctypes.PyDLL(None).syscall  # keeps the interpreter lock: for clone()
_holding.restype = ctypes.c_long


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


class Prepared:
    """A system call whose arguments are converted beforehand, because every microsecond of a run counts.

    Integers are passed as 64-bit words, bytes as a pointer, None as a null pointer.
    """

    __slots__ = ("name", "words")

    def __init__(self, name: str, *arguments: int | bytes | None) -> None:
        if name not in NR:
            raise OSError(38, f"{name}: no number known for {MACHINE}")
        self.name = name
        converted = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
        self.words = (ctypes.c_long(NR[name]), *converted)

    def __call__(self) -> int:
        result = _syscall(*self.words)
        return result if result >= 0 else _check(result, self.name)


def call(name: str, *arguments: int | bytes | None) -> int:
    """One raw system call by name."""
    return Prepared(name, *arguments)()


class Clone:
    """fork() as one bare system call, optionally into new namespaces. Returns like fork().

    The interpreter's own fork() hooks are left out: they repair locks for a process with threads, and the server has
    none. What they would cost is half of a small run. So the state of `random` is the same in every child, which
    makes grading repeatable.
    """

    def __init__(self, flags: int) -> None:
        self._words = [ctypes.c_long(word) for word in (NR["clone"], flags | 17, 0, 0, 0, 0)]  # 17: SIGCHLD

    def __call__(self) -> int:
        pid = _holding(*self._words)
        if pid < 0:
            raise OSError("clone: the kernel refuses a new process")
        return pid


def unshare(flags: int) -> None:
    call("unshare", flags)


def setns(fd: int, kind: int) -> None:
    call("setns", fd, kind)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    what, where, kind_, data_ = (None if text is None else text.encode() for text in (source, target, kind, data))
    try:
        call("mount", what, where, kind_, flags, data_)
    except OSError as error:
        raise OSError(error.errno, f"mount {target}: {os.strerror(error.errno or 0)}") from None


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    call("umount2", target.encode(), flags)


def pivot_root(new_root: str, put_old: str) -> None:
    call("pivot_root", new_root.encode(), put_old.encode())


def prepared_prctl(option: int, *arguments: int) -> Prepared:
    return Prepared("prctl", option, *(list(arguments) + [0, 0, 0, 0])[:4])


def prctl(option: int, *arguments: int) -> int:
    return prepared_prctl(option, *arguments)()


def prepared_mount(source: str, target: str, kind: str, flags: int, data: str) -> Prepared:
    return Prepared("mount", source.encode(), target.encode(), kind.encode(), flags, data.encode())


def drop_capabilities() -> Prepared:
    """Empties the effective, permitted and inheritable sets of the thread that calls it."""
    return Prepared("capset", struct.pack("<II", 0x20080522, 0), bytes(24))


def drop_bounding_set() -> None:
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return  # past the last capability, or not allowed to drop any


class Filter:
    """A classic BPF seccomp program (8 bytes an instruction), ready to be installed on the calling thread."""

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(self._code))
        self._header = ctypes.create_string_buffer(header, len(header))
        self._call = prepared_prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self._header))

    def replace(self, old: bytes, new: bytes) -> None:
        """Edits the program in place."""
        ctypes.memmove(self._code, self._code.raw.replace(old, new), len(self._code))

    def install(self) -> None:
        self._call()


def install_filter(program: bytes) -> None:
    Filter(program).install()
