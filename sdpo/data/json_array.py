"""The elements of a JSON array, one at a time: a file larger than memory is no obstacle.

Not ijson: its fast backend refuses integers over 64 bits and NaN, which the JSON lines of the same rows may hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from sdpo.data.long_integers import read_integer

CHUNK = 1 << 20  # characters
MAX_TOKEN = 16  # characters; a token other than a string (-Infinity, an escape) may be cut in two


def array_elements(file: TextIO, chunk: int = CHUNK) -> Iterator[Any]:
    """Decodes as `json.loads` would. Raises ValueError that names the element (from 1) that cannot be read."""
    text = _Text(file, chunk)
    text.take("[", 0)
    if text.next_character() == "]":
        text.take("]", 0)
    else:
        number = 0
        while True:
            number += 1
            yield text.value(number)
            if text.take(",]", number) == "]":
                break
    if rest := text.next_character():
        raise ValueError(f"{rest!r} after the end of the array")


class _Text:
    """What has been read and not yet used: `buffer[at:]`."""

    def __init__(self, file: TextIO, chunk: int) -> None:
        self.file, self.chunk, self.buffer, self.at = file, chunk, "", 0
        self.decoder = json.JSONDecoder(parse_int=read_integer)

    def more(self, size: int) -> bool:
        """Forgets what was used and reads on; False at the end of the file."""
        read = self.file.read(size)
        self.buffer, self.at = self.buffer[self.at :] + read, 0
        return bool(read)

    def next_character(self) -> str:
        """The next one that is not blank, without taking it; "" at the end of the file."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if not self.more(self.chunk):
                return ""

    def take(self, allowed: str, number: int) -> str:
        found = self.next_character()
        if not found or found not in allowed:
            wanted = " or ".join(map(repr, allowed))
            raise ValueError(
                f"{wanted} expected after element {number}, got {found!r}" + " (end of file)" * (not found)
            )
        self.at += 1
        return found

    def value(self, number: int) -> Any:
        self.next_character()
        size = self.chunk
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                if not (self._cut_off(error) and self.more(size)):
                    raise ValueError(f"element {number}: {error.msg}") from error
                size *= 2
                continue
            except RecursionError as error:
                raise ValueError(f"element {number}: nested too deeply") from error
            taken = end - self.at
            # A number at the end of the buffer may go on behind it: 1 may be 1.5, or 1e-7.
            if isinstance(value, int | float) and len(self.buffer) - end < 3 and self.more(size):
                continue
            self.at += taken
            return value

    def _cut_off(self, error: json.JSONDecodeError) -> bool:
        """Whether the end of the buffer can be what is wrong; a fault in its middle is one whatever follows."""
        return error.msg.startswith("Unterminated") or error.pos >= len(self.buffer) - MAX_TOKEN
