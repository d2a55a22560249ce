"""Is what a process has written seen by another, on another machine? Network file systems show it late, or never.

Loads no torch: this is what a machine runs before anything else of a run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import sdpo

LONGEST_PAUSE_S = 1.0


def wait_until_seen(unseen: Callable[[], str], seconds: float) -> str:
    """Asks `unseen`, at once and then again and again, what is not there yet. "" as soon as that is nothing, else what
    was missing after `seconds`."""
    pause, end = 0.01, time.monotonic() + seconds
    while (missing := unseen()) and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)
    return missing


def unseen(path: Path) -> str:
    """The path, unless it is there. Lists its folder, as network file systems remember what was not there."""
    try:
        return "" if path.name in {entry.name for entry in path.parent.iterdir()} else str(path)
    except OSError:
        return str(path)


def look(folder: Path | None, mark: str, paths: list[str], wait: float, own: str) -> tuple[bool, list[str], str]:
    """Runs on a machine of the run. Is the driver's mark in the run folder, which paths are not there, and the code.
    All are waited for at the same time: the driver knows for how long."""
    marks = [] if folder is None else [folder / mark]
    wanted = [*marks, *map(Path, paths)]
    wait_until_seen(lambda: next(filter(None, map(unseen, wanted)), ""), wait)
    seen = not any(map(unseen, marks))
    if folder is not None and seen:
        (folder / f"{mark}_{own}").touch()
    return seen, [path for path in paths if unseen(Path(path))], code_hash()


def code_hash() -> str:
    """Of this package's modules."""
    root, found = Path(sdpo.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()[:12]
