"""What a graded program may see of this machine: the interpreter, its libraries, chosen third-party packages."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from .inside.plan import Plan

EMPTY_CANDIDATES = ("/var/empty", "/srv", "/mnt", "/media", "/opt", "/home")
HIGHEST_ID = 0x7000_0000  # below it even where ids are signed 32-bit numbers


def build_plan(ceiling: str, slots: int, packages: tuple[str, ...], preload: list[str]) -> Plan:
    """`packages`: importable third-party packages that programs may use, e.g. ("numpy",); missing ones are skipped."""
    stdlib = os.path.realpath(sysconfig.get_path("stdlib"))
    folders, roots = package_folders(packages)
    return Plan(
        ceiling=ceiling,
        trees=[stdlib, *library_folders()],
        covers=[f"{stdlib}/{name}" for name in ("site-packages", "dist-packages", "test")],
        packages=folders,
        package_roots=roots,
        empty_directory=next((d for d in EMPTY_CANDIDATES if is_empty(d)), "/"),
        uid_base=unused_ids(slots + 1),
        slots=slots,
        preload=preload,
    )


def library_folders() -> list[str]:
    """Where the loader looks, as real paths without duplicates."""
    arch = sysconfig.get_config_var("MULTIARCH") or ""
    names = [f"/lib/{arch}", f"/usr/lib/{arch}"] if arch else []
    names += ["/lib64", "/usr/lib64", "/usr/share/zoneinfo", "/usr/lib/locale"]
    base = os.path.realpath(sys.base_prefix)
    found: list[str] = []
    for name in names:
        real = os.path.realpath(name)
        if os.path.isdir(real) and real not in ("/lib", "/usr/lib") and real not in found:
            found.append(real)
    shared = f"{base}/lib"
    if base not in ("/usr", "/usr/local"):  # a private interpreter keeps its own shared libraries beside its modules
        found += [os.path.realpath(p) for p in map(str, Path(shared).glob("*.so*")) if os.path.isfile(p)]
    return list(dict.fromkeys(found))


def package_folders(packages: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(folders and modules of the packages with their bundled libraries, directories to import them from)."""
    folders: list[str] = []
    roots: list[str] = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        place = Path(spec.origin).resolve()
        place = place.parent if spec.submodule_search_locations else place
        root = str(place.parent)
        folders += [str(place), *(str(p) for p in (place.parent / f"{name}.libs",) if p.is_dir())]
        if root not in roots:
            roots.append(root)
    return folders, roots


def is_empty(directory: str) -> bool:
    try:
        return not os.listdir(directory)
    except OSError:
        return False


def unused_ids(count: int) -> int:
    """First of `count` user ids for runs, from the top of the largest mapped block (a container maps few); 0 when not
    root.

    Different processes get different blocks, so that neither signals nor thread limits meet.
    """
    if os.geteuid() != 0:
        return 0
    with open("/proc/self/uid_map") as file:
        blocks = [tuple(map(int, line.split())) for line in file]
    first, _, length = max(blocks, key=lambda block: block[2])
    top = min(first + length, HIGHEST_ID)
    room = (top - first) // 2 // count
    return top - count * (1 + os.getpid() % room) if room > 0 else 0
