"""Checkpoint folders: written under a temporary name, synced to disk, marked, renamed. Only marked ones are read."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sdpo.errors import CheckpointError

MARKER = "COMPLETE"
FULL = 1 << 20  # bytes free
STATE = "trainer_state.json"
CONFIG = "resolved_config.yaml"  # the settings it was written with


@dataclass(frozen=True)
class TrainerState:
    """The controller's part of a checkpoint. Data cursor is `drawn` or `step`: the order is a pure function of it."""

    step: int
    policy_version: int
    samples: int  # responses generated so far
    best: dict[str, Any] | None = None  # {"metric", "step", "value"} of the best validation, if the run keeps it
    unvalidated: bool = False  # written on a signal that came into the validation of this step
    drawn: int | None = None  # rollout batches so far; None: as many as steps

    def __post_init__(self) -> None:
        """Raises ValueError for what no run has written."""
        if not all(type(value) is int for value in (self.step, self.policy_version, self.samples)):
            raise ValueError("not whole numbers")
        kinds = {"metric": str, "step": int, "value": float}
        if self.best is not None and {name: type(value) for name, value in self.best.items()} != kinds:
            raise ValueError("not a best step")


def save(
    root: Path, state: TrainerState, write_actor: Callable[[str], None], keep: int | None, config_yaml: str = ""
) -> Path:
    """Writes `root/step_N` so that a crash at any moment leaves the older checkpoints readable; then prunes to `keep`.

    `write_actor(folder)` writes the workers' part. Raises CheckpointError when the disk refuses.
    """
    final = root / f"step_{state.step}"
    temporary = root / f".tmp_step_{state.step}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_actor(str(temporary / "actor"))
        (temporary / STATE).write_text(json.dumps(asdict(state)))
        (temporary / CONFIG).write_text(config_yaml, encoding="utf-8", errors="backslashreplace")
        (temporary / MARKER).touch()
        _sync_tree(temporary)
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
        _sync(root)
    except (OSError, CheckpointError) as error:
        full = root.is_dir() and shutil.disk_usage(root).free < FULL  # torch's own words for it do not say so
        reason = "No space left on device" if full else getattr(error, "strerror", None) or error
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(f"checkpoint {final}: could not be written ({reason}); any older one is kept") from error
    except KeyboardInterrupt:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    prune(root, keep)
    return final


def read_state(folder: Path) -> TrainerState:
    """Raises CheckpointError for a folder that is missing, unfinished or damaged."""
    if not (folder / MARKER).exists():
        raise CheckpointError(
            f"checkpoint {folder}: {'unfinished' if folder.exists() else 'does not exist'}; "
            "name a complete step_N folder"
        )
    try:
        return TrainerState(**json.loads((folder / STATE).read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        fix = "delete the folder to resume from an older one"
        raise CheckpointError(f"checkpoint {folder}: {STATE} cannot be read ({error}); {fix}") from error


def complete(root: Path) -> list[Path]:
    """Complete checkpoints, oldest first, ordered by step number."""
    found = [folder for folder in root.glob("step_*") if (folder / MARKER).exists() and number(folder) >= 0]
    return sorted(found, key=number)


def number(folder: Path) -> int:
    """The N of `step_N`; -1 for another name."""
    digits = folder.name.removeprefix("step_")
    return int(digits) if digits.isdecimal() else -1


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    return next(reversed(complete(root)), None)


def prune(root: Path, keep: int | None) -> None:
    """Deletes all but the newest `keep` complete checkpoints. None, 0 and -1 keep all."""
    if keep is None or keep <= 0:
        return
    for folder in complete(root)[:-keep]:
        (folder / MARKER).unlink()  # a deletion cut short leaves no half checkpoint that looks whole
        shutil.rmtree(folder)


def _sync_tree(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
