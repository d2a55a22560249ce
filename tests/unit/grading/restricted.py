"""Starts a command under the restrictions of another machine: another user, a container's filter, a kernel without
Landlock.

    python restricted.py user,no-userns -- python program.py

Needs root (it only takes rights away). Conditions: user, no-userns, no-mount, no-landlock, docker.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from sdpo.sandbox.inside import kernel
from sdpo.sandbox.inside.syscall_numbers import AUDIT_ARCH, MACHINE, numbers

NOBODY = 65534
NAMESPACE_FLAGS = 0x7E020080
DENIED = {
    "no-userns": ("unshare", "setns"),
    "no-mount": ("mount", "umount2", "pivot_root"),
    "no-landlock": ("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    # What Docker's default profile refuses a container without extra capabilities.
    "docker": ("unshare", "setns", "mount", "umount2", "pivot_root", "clone3"),
}
DOCKER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)


def deny_filter(conditions: list[str]) -> bytes:
    """A filter that refuses the named calls and clone() with namespace flags, and allows the rest."""
    table = numbers(MACHINE)
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, AUDIT_ARCH[MACHINE]), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
    for name in sorted({name for condition in conditions for name in DENIED.get(condition, ())}):
        error = {"clone3": 38}.get(name, 95 if name.startswith("landlock") else 1)
        code += [(0x15, 0, 1, table[name]), (0x06, 0, 0, 0x50000 | error)]
    if "docker" in conditions or "no-userns" in conditions:
        code += [(0x15, 0, 3, table["clone"]), (0x20, 0, 0, 16), (0x45, 0, 1, NAMESPACE_FLAGS), (0x06, 0, 0, 0x50001)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def open_the_way(paths: list[str]) -> None:
    """In a mount namespace of our own, lets everybody reach directories that lie below a private home."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    blocked: dict[str, list[str]] = {}
    for path in paths:
        for parent in reversed(Path(path).parents):
            if not parent.stat().st_mode & 0o001:
                blocked.setdefault(str(parent), []).append(path)
                break
    for parent, below in blocked.items():
        handles = [(path, os.open(path, os.O_PATH)) for path in dict.fromkeys(below)]
        kernel.mount("tmpfs", parent, "tmpfs", 0, "mode=755")
        for path, handle in handles:
            os.makedirs(path, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{handle}", path, None, kernel.MS_BIND | kernel.MS_REC)


def drop_to_docker_capabilities() -> None:
    keep = sum(1 << capability for capability in DOCKER_CAPABILITIES)
    for capability in range(41):
        if not keep >> capability & 1:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)
    low, high = keep & 0xFFFFFFFF, keep >> 32
    kernel.call("capset", struct.pack("<II", 0x20080522, 0), struct.pack("<IIIIII", low, low, 0, high, high, 0))


def apply(conditions: list[str]) -> None:
    if "user" in conditions:
        open_the_way([sys.base_prefix, sys.prefix, str(Path(__file__).resolve().parents[3])])
    if "docker" in conditions:
        drop_to_docker_capabilities()
    if "user" in conditions:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    if any(condition in DENIED for condition in conditions):
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.install_filter(deny_filter(conditions))


def main() -> None:
    split = sys.argv.index("--")
    apply([condition for condition in sys.argv[1].split(",") if condition])
    os.execv(sys.argv[split + 1], sys.argv[split + 1 :])


if __name__ == "__main__":
    main()
