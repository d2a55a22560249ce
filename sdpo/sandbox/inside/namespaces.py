"""The outer walls, built once by the fork server: own user, process, network, IPC, host-name and cgroup namespaces,
and a read-only root that holds the interpreter, its libraries and four devices - no /proc, /sys, /etc or /tmp."""

from __future__ import annotations

import os
import socket

from . import kernel
from .plan import Plan

OTHER = kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWCGROUP
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
SCRATCH_PARENT, SCRATCH = "/w", "/w/s"
LOADER_LINKS = ("/lib", "/lib64", "/usr/lib64", "/lib32")


def enter(plan: Plan, user: str, mounts: bool, proc_fd: int) -> None:
    """Moves this process (single-threaded) into the namespaces; its next child is the first of the process namespace.

    `user`: "range" (real root; a block of high ids is mapped), "single" (own id becomes root inside), "none" (real
    root stays).
    """
    if user == "range":
        if mounts:  # before the user namespace: its root cannot reach an interpreter below somebody's home
            kernel.unshare(kernel.CLONE_NEWNS)
            build_root(plan)
        _unshare_with_range(plan, proc_fd)
    else:
        flags = OTHER | (kernel.CLONE_NEWNS if mounts else 0) | (kernel.CLONE_NEWUSER if user == "single" else 0)
        uid, gid = os.geteuid(), os.getegid()
        kernel.unshare(flags)
        if user == "single":
            map_single(proc_fd, 0, uid, gid)
        if mounts:
            build_root(plan)
    socket.sethostname("sandbox")


def map_single(proc_fd: int, inside: int, uid: int, gid: int) -> None:
    """Maps one id of the parent namespace to `inside` for the calling process."""
    write_file(proc_fd, "self/setgroups", "deny")
    write_file(proc_fd, "self/uid_map", f"{inside} {uid} 1")
    write_file(proc_fd, "self/gid_map", f"{inside} {gid} 1")


def write_file(dir_fd: int, path: str, text: str) -> None:
    """os.write reports the kernel's refusal; a file object would lose it at close."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        raise OSError(error.errno, f"write /proc/{path}: {os.strerror(error.errno or 0)}") from None


def _unshare_with_range(plan: Plan, proc_fd: int) -> None:
    """A child that stays outside writes the maps; only the parent namespace may map a range."""
    target = os.getpid()
    go_read, go_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(go_write)
        code = 1
        try:
            if os.read(go_read, 1):
                for name in ("uid_map", "gid_map"):
                    write_file(proc_fd, f"{target}/{name}", f"0 {plan.uid_base} {plan.slots + 1}")
                code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    os.close(go_read)
    try:
        kernel.unshare(kernel.CLONE_NEWUSER | OTHER)
        os.write(go_write, b"g")
    finally:
        os.close(go_write)
        _, status = os.waitpid(helper, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(code, f"write uid_map: {os.strerror(code)}")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def build_root(plan: Plan) -> None:
    """Pivots into a tmpfs tree of read-only bind mounts. The tree hangs over an existing directory of the private mount
    namespace, so nothing has to be created, or cleaned up, on the host."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    root = next((d for d in ("/sys", "/mnt", "/srv", "/media", "/home") if _covers_nothing(d, plan)), None)
    if root is None:
        raise OSError(2, "no directory to hang the tree on")
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", root, "tmpfs", flags, "size=4m,nr_inodes=4096,mode=755")
    for path in plan.trees:
        bind(path, root + path)
    for cover in plan.covers:
        if os.path.isdir(root + cover):
            kernel.mount("tmpfs", root + cover, "tmpfs", flags, "size=64k,nr_inodes=64,mode=755")
    for path in plan.packages:
        bind(path, root + path)
    for path in DEVICES:
        bind(path, root + path)
    for path in LOADER_LINKS:
        if os.path.islink(path) and not os.path.lexists(root + path):
            os.symlink(os.readlink(path), root + path)
    os.makedirs(root + SCRATCH, exist_ok=True)
    for cover in plan.covers:
        if os.path.isdir(root + cover):
            read_only(root + cover)
    os.mkdir(root + "/.old")
    kernel.pivot_root(root, root + "/.old")
    os.chdir("/")
    kernel.unmount("/.old")
    os.rmdir("/.old")
    read_only("/")


def _covers_nothing(directory: str, plan: Plan) -> bool:
    sources = (*plan.trees, *plan.packages, *DEVICES)
    return os.path.isdir(directory) and not any((path + "/").startswith(directory + "/") for path in sources)


def bind(source: str, target: str) -> None:
    """Read-only bind mount; the target is made."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target):
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
    if not source.startswith("/dev/"):
        read_only(target)


def read_only(target: str) -> None:
    """Remounts read-only, keeping the flags that a user namespace may not take away."""
    kept = os.statvfs(target).f_flag & (kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC | 1024 | 2048 | (1 << 12))
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID
    flags |= kept & (kernel.MS_NODEV | kernel.MS_NOEXEC)
    flags |= (1024 if kept & 1024 else 0) | (
        2048 if kept & 2048 else 0
    )  # noatime, nodiratime: the same bits in both worlds
    flags |= (1 << 21) if kept & (1 << 12) else 0  # relatime differs
    kernel.mount("none", target, None, flags)


def scratch_mount(megabytes: int, uid: int) -> kernel.Prepared:
    """A fresh writable directory for one run, in its own mount namespace."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    options = f"size={megabytes}m,nr_inodes=1024,mode=700,uid={uid},gid={uid}"
    return kernel.prepared_mount("tmpfs", SCRATCH, "tmpfs", flags, options)
