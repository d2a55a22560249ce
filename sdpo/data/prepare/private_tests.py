"""Test cases as LiveCodeBench stores them: JSON text, or base64 of zlib of a pickle of that text.

A pickle is a program. This one is never run: its instructions are listed, and only those that push one text are
accepted, so that nothing can be imported, called or built.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from typing import Any

from sdpo.errors import DataError

MAX_BYTES = 1 << 30  # decompressed; the largest real row has some tens of megabytes
_TEXT = frozenset({"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def decode_tests(text: str) -> list[dict[str, str]]:
    """A list of {"input", "output", "testtype"}. Raises DataError when it is anything else."""
    data = _parsed(text if text.lstrip().startswith("[") else _unpacked(text))
    if not isinstance(data, list):
        raise DataError(f"test cases: got {type(data).__name__}; it must be a list")
    for case in data:
        if not isinstance(case, dict) or not all(isinstance(case.get(k), str) for k in ("input", "output", "testtype")):
            raise DataError(f"test cases: got {case!r:.60}; a case has input, output and testtype, all text")
    return data


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"test cases: not JSON: {error}") from error


def _unpacked(text: str) -> str:
    try:
        packed = base64.b64decode(text, validate=True)
        stream = zlib.decompressobj()
        data = stream.decompress(packed, MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DataError(f"test cases: neither JSON nor base64 of zlib: {error}") from error
    if not stream.eof:
        raise DataError(f"test cases: cut off, or over {MAX_BYTES >> 20} MB decompressed")
    return text_of_pickle(data)


def text_of_pickle(data: bytes) -> str:
    """The text that a pickle of one `str` holds. Raises DataError for every other pickle, without running it."""
    found: list[str] = []
    try:
        for instruction, argument, _ in pickletools.genops(data):
            if instruction.name in _TEXT and isinstance(argument, str):
                found.append(argument)
            elif instruction.name not in _HARMLESS:
                raise DataError(f"test cases: a pickle with {instruction.name}; only one that holds a text is read")
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"test cases: not a pickle: {error}") from error
    if len(found) != 1:
        raise DataError(f"test cases: a pickle with {len(found)} texts; only one that holds a text is read")
    return found[0]
