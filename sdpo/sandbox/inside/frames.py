"""Values on the wire: 4 bytes of length, then JSON in which everything that JSON lacks is an object with one tag.

The encoder runs beside untrusted code and may be made to lie: what it sends is only an answer. The decoder builds exact
built-in types and nothing else, so no method of a foreign class ever runs on the trusted side.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import os
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

MAX_DEPTH = 100
LENGTH = struct.Struct("<I")
READ_SIZE = 1 << 16
NUMPY_KINDS = "biufcSU"  # of arrays that travel: numbers and texts
MAX_FRACTION = 20_000  # hexadecimal digits; finding the common divisor is quadratic
MAX_DECIMAL = 20_000  # digits; comparing with an integer is quadratic
MAX_SPELT = 4 * sys.int_info.default_max_str_digits  # bits of an integer in a description
MAX_COLLIDING = 64  # distinct keys of one set or dict with the same hash


class FrameError(Exception):
    """A frame that no honest encoder would send."""


class Opaque:
    """A value that does not travel: equal to nothing. `text` is a short description for feedback."""

    __slots__ = ("text",)
    __hash__ = object.__hash__

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return False

    def __repr__(self) -> str:
        return self.text


def describe(value: object, limit: int = 200) -> str:
    """repr() that survives hostile objects, and does not spell integers of thousands of digits."""
    unlimited = sys.get_int_max_str_digits()
    if type(value) is int and value.bit_length() > MAX_SPELT:
        return "<a number too long to show>"
    try:
        sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
        text = repr(value)
        return str.__str__(text)[:limit]
    except BaseException:  # the object's own code may raise anything
        return f"<{type.__getattribute__(type(value), '__name__')} object>"[:limit]
    finally:
        sys.set_int_max_str_digits(unlimited)


def encode(value: Any, foreign: Callable[[Any], Any] | None = None, depth: int = 0) -> Any:
    """Plain JSON data for a value. Subclasses of built-in types lose their class; `foreign` may give data for the
    rest."""
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -(1 << 62) < value < (1 << 62) else {"i": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"f": float.__repr__(value)}
    if depth >= MAX_DEPTH:
        return {"o": "<nested too deeply>"}
    if kind is list:
        return [encode(item, foreign, depth + 1) for item in value]
    if kind is tuple:
        return {"t": [encode(item, foreign, depth + 1) for item in value]}
    if kind is dict:
        return {"d": [[encode(k, foreign, depth + 1), encode(v, foreign, depth + 1)] for k, v in value.items()]}
    if foreign is not None:
        data = foreign(value)
        if data is not None:
            return data
    return _encode_rare(value, foreign, depth)


_CONTAINERS: tuple[tuple[Any, str], ...] = ((deque, "q"), (frozenset, "z"), (set, "s"), (tuple, "t"))
_SCALARS: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (bytes, "b", lambda v: base64.b64encode(bytes.__getitem__(v, slice(None))).decode()),
    (bytearray, "B", lambda v: base64.b64encode(bytearray.__getitem__(v, slice(None))).decode()),
    (complex, "c", lambda v: [float.__repr__(v.real), float.__repr__(v.imag)]),
    (Decimal, "D", lambda v: Decimal.__str__(v)),
    (Fraction, "F", lambda v: [hex(v.numerator), hex(v.denominator)]),
    (datetime.datetime, "dt", datetime.datetime.isoformat),
    (datetime.date, "da", datetime.date.isoformat),
    (datetime.time, "ti", datetime.time.isoformat),
    (datetime.timedelta, "td", lambda v: [v.days, v.seconds, v.microseconds]),
)


def _encode_rare(value: Any, foreign: Callable[[Any], Any] | None, depth: int) -> Any:
    def inner(item: Any) -> Any:
        return encode(item, foreign, depth + 1)

    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return encode(int.__add__(value, 0))
    if isinstance(value, float):
        return encode(float.__add__(value, 0.0))
    if isinstance(value, Counter):
        return {"C": [[inner(k), inner(v)] for k, v in dict.items(value)]}
    if isinstance(value, dict):
        tag = "O" if isinstance(value, OrderedDict) else "D2" if isinstance(value, defaultdict) else "d"
        return {tag: [[inner(k), inner(v)] for k, v in dict.items(value)]}
    if isinstance(value, list):
        return [inner(item) for item in list.__iter__(value)]
    for base, tag in _CONTAINERS:
        if isinstance(value, base):
            return {tag: [inner(item) for item in base.__iter__(value)]}
    for base, tag, convert in _SCALARS:
        if isinstance(value, base):
            return {tag: convert(value)}
    module = type.__getattribute__(type(value), "__module__")
    if type(module) is str and module.split(".")[0] == "numpy":
        data = _encode_numpy(value, inner)
        if data is not None:
            return data
    return {"o": describe(value)}


def _encode_numpy(value: Any, inner: Callable[[Any], Any]) -> Any:
    import numpy

    if isinstance(value, numpy.generic) and value.dtype.kind in NUMPY_KINDS:
        return inner(value.item())
    if isinstance(value, numpy.ndarray) and value.dtype.kind in NUMPY_KINDS:
        return {"n": [value.dtype.str, inner(value.tolist())]}
    return None


def decode(
    data: Any, arrays: Callable[[str, Any], Any] | None = None, foreign: Callable[[str, Any], Any] | None = None
) -> Any:
    """The value behind JSON data. ndarrays become nested lists unless `arrays(dtype, nested)` builds them; tags that
    are not of this file go to `foreign(tag, body)`. Raises FrameError."""
    try:
        return _decode(data, arrays, foreign, 0)
    except (
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        ZeroDivisionError,
        OverflowError,
        InvalidOperation,
        RecursionError,
    ) as error:
        raise FrameError(f"{type(error).__name__} while decoding") from None


def _decode(data: Any, arrays: Any, foreign: Any, depth: int) -> Any:
    if data is None or isinstance(data, (bool, str, int, float)):
        return data
    if depth > MAX_DEPTH + 1:
        raise FrameError("nested too deeply")

    def inner(item: Any) -> Any:
        return _decode(item, arrays, foreign, depth + 1)

    if isinstance(data, list):
        return [inner(item) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise FrameError("not a value")
    ((tag, body),) = data.items()
    if tag in ("t", "s", "z", "q"):
        items = [inner(item) for item in body]
        if tag in ("s", "z"):
            refuse_colliding(items)
        return {"t": tuple, "s": set, "z": frozenset, "q": deque}[tag](items)
    if tag in ("d", "O", "C", "D2"):
        pairs = [(inner(k), inner(v)) for k, v in body]
        refuse_colliding([k for k, _ in pairs])
        return Counter(dict(pairs)) if tag == "C" else OrderedDict(pairs) if tag == "O" else dict(pairs)
    if tag == "n":
        dtype, nested = body
        return arrays(dtype, inner(nested)) if arrays else inner(nested)
    if tag in _BUILDERS:
        return _BUILDERS[tag](body)
    if foreign is not None:
        return foreign(tag, body)
    raise FrameError(f"unknown tag {tag!r:.20}")


_BUILDERS: dict[str, Callable[[Any], Any]] = {
    "i": lambda b: int(b, 16),
    "f": lambda b: float(b),
    "o": lambda b: Opaque(b[:400] if isinstance(b, str) else ""),
    "b": lambda b: base64.b64decode(b, validate=True),
    "B": lambda b: bytearray(base64.b64decode(b, validate=True)),
    "c": lambda b: complex(float(b[0]), float(b[1])),
    "D": lambda b: _decimal(b),
    "F": lambda b: _fraction(*b),
    "dt": datetime.datetime.fromisoformat,
    "da": datetime.date.fromisoformat,
    "ti": datetime.time.fromisoformat,
    "td": lambda b: datetime.timedelta(int(b[0]), int(b[1]), int(b[2])),
}


def _decimal(text: str) -> Decimal:
    if len(text) > MAX_DECIMAL:
        raise FrameError("a decimal that takes long to compare")
    return Decimal(text)


def _fraction(top: str, bottom: str) -> Fraction:
    if len(top) + len(bottom) > MAX_FRACTION:
        raise FrameError("a fraction that takes long to reduce")
    return Fraction(int(top, 16), int(bottom, 16))


def refuse_colliding(keys: list) -> None:
    """Keys chosen to share a hash make a set quadratic: an attack on whoever builds it."""
    if len(keys) <= MAX_COLLIDING:
        return
    hashes = Counter(map(hash, keys))
    _, most = hashes.most_common(1)[0]
    if most > MAX_COLLIDING:
        raise FrameError("colliding keys")


# Made once: json.dumps() and loads() set an encoder and a decoder up anew, which is most of the time of a small frame.
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder().scan_once  # type: ignore[attr-defined] # the standard library's stubs do not know it


def pack(message: Any) -> bytes:
    body = _to_json(message).encode()
    return LENGTH.pack(len(body)) + body


def unpack(body: bytes) -> Any:
    """Parses one frame body. Raises FrameError."""
    try:
        text = body.decode()
        content, end = _from_json(text, 0)
        if end != len(text):
            raise ValueError("something follows the content")
        return content
    except (ValueError, RecursionError, StopIteration) as error:
        raise FrameError(f"{type(error).__name__} in a frame") from None


def write_frame(fd: int, message: Any) -> None:
    """Blocking; for the inside."""
    data = memoryview(pack(message))
    while data:
        data = data[os.write(fd, data) :]


class FrameReader:
    """Blocking; for the inside. Reads as much as there is, because every system call of a run counts."""

    def __init__(self, fd: int, cap: int = 1 << 31) -> None:
        self.fd = fd
        self.cap = cap
        self._data = bytearray()  # bytes would be copied whole for every part that comes

    def read(self) -> Any:
        """The next frame's content. EOFError when the other side is gone, FrameError for a frame above `cap` bytes."""
        while len(self._data) < 4:
            self._fill(READ_SIZE)
        (length,) = LENGTH.unpack_from(self._data)
        if length > self.cap:
            raise FrameError("a message over the size limit")
        end = 4 + length
        while len(self._data) < end:
            self._fill(max(READ_SIZE, end - len(self._data)))
        body = bytes(self._data[4:end])
        del self._data[:end]
        return unpack(body)

    def _fill(self, size: int) -> None:
        part = os.read(self.fd, size)
        if not part:
            raise EOFError
        self._data += part
