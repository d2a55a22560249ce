"""Landlock: a set of file-system rights that a process can only narrow. One rule set is built in the fork server;
each run takes it on with one system call."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from . import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
ALL_FS_V1 = (1 << 13) - 1  # execute .. make_sym
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # ABI 2, 3, 5
READ = EXECUTE | READ_FILE | READ_DIR
NET_BIND_CONNECT = 3  # ABI 4
SCOPE_ABSTRACT_UNIX_AND_SIGNAL = 3  # ABI 6


def abi() -> int:
    """Version of the kernel's Landlock interface; OSError where there is none."""
    return kernel.call("landlock_create_ruleset", 0, 0, 1)


def all_rights(version: int) -> int:
    rights = ALL_FS_V1
    for needed, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        if version >= needed:
            rights |= right
    return rights


def create(version: int) -> int:
    """A rule set (file descriptor) that handles, and so refuses, every right this kernel knows."""
    attributes = struct.pack("<Q", all_rights(version))
    if version >= 4:
        attributes += struct.pack("<Q", NET_BIND_CONNECT)
    if version >= 6:
        attributes += struct.pack("<Q", SCOPE_ABSTRACT_UNIX_AND_SIGNAL)
    return kernel.call("landlock_create_ruleset", attributes, len(attributes), 0)


def allow(ruleset: int, path: str, rights: int) -> None:
    """Grants rights beneath a path; for a file only those that make sense on a file. A missing path is skipped."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
        if rights:
            kernel.call("landlock_add_rule", ruleset, 1, struct.pack("<Qi", rights, fd), 0)
    finally:
        os.close(fd)


def allow_all(ruleset: int, paths: Iterable[tuple[str, int]]) -> None:
    for path, rights in paths:
        allow(ruleset, path, rights)


def prepared_restrict(ruleset: int) -> kernel.Prepared:
    """Takes the rule set on, for good. Needs no_new_privs."""
    return kernel.Prepared("landlock_restrict_self", ruleset, 0)
