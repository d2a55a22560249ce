"""JSON lines that stay valid and stay continuous over a crash and a resume."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("sdpo.tracking")

# Legal inside JSON strings, yet line breaks to many readers.
_LINE_BREAKS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"}


def plain_number(value: Any) -> float | int | None:
    """A metric as a Python number: numpy and torch scalars are unpacked, NaN and infinities become None.

    Raises TypeError (or ValueError) for what is not a single number.
    """
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool | int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None


def encode_line(record: dict[str, Any]) -> str:
    """One line of JSON, readable in any script. Raises ValueError for a bare NaN or infinity."""
    line = json.dumps(record, ensure_ascii=False, allow_nan=False, default=plain_number)
    for char, escape in _LINE_BREAKS.items():
        line = line.replace(char, escape)
    return line + "\n"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file, one at a time. A missing file is empty; a line cut short by a crash is skipped."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            record = decode(line)
            if record is not None:
                yield record


class JsonLines:
    """Appends records to a file; every line reaches the operating system before `write` returns, so that a killed
    process loses nothing.

    `keep` decides on resume which lines of the last run stay (the file is rewritten under a temporary name, then
    renamed); None starts a new file and raises FileExistsError when there is one.
    """

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool] | None = None) -> None:
        self.path = path
        if keep is not None and path.exists():
            _rewrite(path, keep)
        # A lone surrogate from a model becomes \udcxx, which is its JSON escape.
        self._file = path.open("x" if keep is None else "a", encoding="utf-8", errors="backslashreplace", newline="\n")

    def write(self, *records: dict[str, Any]) -> None:
        self._file.write("".join(encode_line(record) for record in records))
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file so that a reader, or a crash, sees the old text or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def decode(line: str | bytes) -> dict[str, Any] | None:
    """The record of one line; None for what is no JSON object."""
    text = line if isinstance(line, str) else line.decode("utf-8", errors="replace")
    try:
        record = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _rewrite(path: Path, keep: Callable[[dict[str, Any]], bool]) -> None:
    temporary, damaged = path.with_name(f".{path.name}.tmp"), 0
    with (
        path.open(encoding="utf-8", errors="replace", newline="\n") as old,
        temporary.open("w", encoding="utf-8", newline="\n") as new,
    ):
        for line in old:
            record = decode(line)
            if record is not None and keep(record):
                new.write(line if line.endswith("\n") else line + "\n")
            damaged += record is None and line.endswith("\n")  # a last line without an end was cut off by a crash
        new.flush()
        os.fsync(new.fileno())
    if damaged:
        copy = path.with_name(f"{path.name}.damaged")
        shutil.copy2(path, copy)
        log.warning("%s: %d lines cannot be read and are left out; the file as it was is %s", path, damaged, copy)
    os.replace(temporary, path)
