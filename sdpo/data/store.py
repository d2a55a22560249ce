"""Prompts kept in a temporary file: any number of them in little memory, with access by position."""

from __future__ import annotations

import pickle
import tempfile
import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from sdpo.records import Prompt


class PromptStore(Sequence[Prompt]):
    """Append, then read: `store[i]`, slices, iteration. Memory: 8 bytes a prompt. Thread-safe.

    The file has no name and goes with the object. Pickle, because `extra_info` may hold what JSON cannot; nobody else
    can write to the file.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="sdpo-prompts-")  # noqa: SIM115 (lives as long as the object)
        self._ends = array("Q")  # where prompt i ends
        self._lock = threading.Lock()

    def append(self, prompt: Prompt) -> None:
        with self._lock:
            self._file.seek(self._ends[-1] if self._ends else 0)
            pickle.dump(prompt, self._file, pickle.HIGHEST_PROTOCOL)
            self._ends.append(self._file.tell())

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, place: int) -> Prompt: ...

    @overload
    def __getitem__(self, place: slice) -> list[Prompt]: ...

    def __getitem__(self, place: int | slice) -> Prompt | list[Prompt]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        place = range(len(self))[place]  # IndexError as a list would raise it
        with self._lock:
            self._file.seek(self._ends[place - 1] if place else 0)
            prompt: Prompt = pickle.load(self._file)
        return prompt

    def __iter__(self) -> Iterator[Prompt]:
        return (self[i] for i in range(len(self)))
