"""Reads a JSON-lines file that another process is writing, as far as it has come."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdpo.tracking.jsonl import decode

CHUNK = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class Place:
    """Where a line is in its file."""

    offset: int
    length: int


class Tail:
    """Each call of `read` goes on where the last one stopped, at a line's end: a line that is not yet complete waits.
    A file that was replaced (a resume rewrites it) or cut is read from the beginning again; `generation` tells.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.generation = 0
        self.offset = 0  # of the first line not yet read
        self._identity: tuple[int, int] | None = None

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def refresh(self) -> bool:
        """Whether the file is another one than at the last call; reading then starts over."""
        try:
            state = self.path.stat()
        except FileNotFoundError:
            changed = self._identity is not None
            self._identity = None
        else:
            identity = state.st_dev, state.st_ino
            changed = self._identity is not None and (identity != self._identity or state.st_size < self.offset)
            self._identity = identity
        if changed:
            self.generation += 1
            self.offset = 0
        return changed

    def read(self, limit: int) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The new whole lines in about `limit` bytes (one line at least). What is no JSON object is skipped."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            rest, stop = b"", self.offset + limit
            while self.offset < stop and (piece := file.read(CHUNK)):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    place = Place(self.offset, len(line))
                    self.offset += len(line) + 1
                    record = decode(line)
                    if record is not None:
                        yield place, record

    def at(self, place: Place) -> dict[str, Any] | None:
        """One line again; None when the file has changed under it."""
        return decode(self.raw(place))

    def raw(self, place: Place) -> bytes:
        try:
            file = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(file, place.length, place.offset)
        finally:
            os.close(file)
