"""The label on a set of published weights, and the check that an engine got the weights it was told about."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sdpo.errors import RolloutError, problem

LABEL_NAME = "version.json"


@dataclass(frozen=True)
class Label:
    """Written beside the weights as the last file before the folder gets its final name."""

    version: int  # optimizer steps behind the weights
    tensors: int
    bytes: int
    tied: tuple[str, ...] = ()  # names that are not written, because another name has the same tensor


def write_label(folder: Path, label: Label) -> None:
    (folder / LABEL_NAME).write_text(json.dumps(asdict(label)), encoding="utf-8")


def read_label(folder: str | Path) -> Label:
    """Raises RolloutError when the folder holds no published weights."""
    path = Path(folder) / LABEL_NAME
    try:
        return Label(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RolloutError(problem("weights", str(folder), f"a folder with a readable {LABEL_NAME}")) from error


def check_version(folder: str | Path, version: int) -> Label:
    """The label of the folder. Raises RolloutError unless it is of `version`: training on samples of other weights than
    the log says is worse than stopping."""
    label = read_label(folder)
    if label.version != version:
        raise RolloutError(problem("weights.version", label.version, f"{version}, as asked for", f"folder {folder}"))
    return label
