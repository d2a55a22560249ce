"""Whether an answer equals the expected one. Works on text and on plain data of exact built-in types only."""

from __future__ import annotations

import math
import re
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

RELATIVE, ABSOLUTE = 1e-6, 1e-9
# A program chooses the text that these read: no digit is tried twice (++ never gives back), so they are linear.
DECIMAL = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+|(?=[eE]))|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
MAX_EXACT = 1 << 14  # bits of an integer that is written out as a decimal: that is quadratic in its digits


def outputs_equal(got: str, expected: str) -> bool:
    """Standard output against the expected text.

    Lines count; blanks at line ends and at the end do not. A token may differ by rounding only where the expected
    token is written as a decimal; integers compare digit by digit.
    """
    got_lines, expected_lines = answer_lines(got), answer_lines(expected)
    return len(got_lines) == len(expected_lines) and all(map(_lines_equal, got_lines, expected_lines))


def answer_lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _lines_equal(got: str, expected: str) -> bool:
    if got == expected:
        return True
    got_tokens, expected_tokens = got.split(), expected.split()
    if len(got_tokens) != len(expected_tokens) or not any(map(DECIMAL.fullmatch, expected_tokens)):
        return False
    return all(map(_tokens_equal, got_tokens, expected_tokens))


def _tokens_equal(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if not DECIMAL.fullmatch(expected) or not NUMBER.fullmatch(got):
        return False
    return close(float(got), float(expected))


def close(got: float, expected: float) -> bool:
    """Two numbers too large for a float are both infinite, and not close."""
    return math.isfinite(got) and math.isclose(got, expected, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def values_equal(got: Any, expected: Any) -> bool:
    """A returned value against the expected one.

    Lists and tuples are the same; True is not 1; 2 equals 2.0; a float is compared with tolerance only where the
    *expected* value is a float. An expected mapping with text keys (all that JSON can write) also matches integer keys.
    """
    if isinstance(expected, bool) or isinstance(got, bool) or expected is None or got is None:
        return got is expected
    if isinstance(expected, (str, bytes, bytearray)):
        return type(got) is type(expected) and got == expected
    if isinstance(expected, float):
        return _float_equal(got, expected)
    if isinstance(expected, (int, Fraction, Decimal, complex)):
        return isinstance(got, (int, float, Fraction, Decimal, complex)) and _numbers_equal(got, expected)
    if isinstance(expected, (list, tuple, deque)):
        if not isinstance(got, (list, tuple, deque)) or len(got) != len(expected):
            return False
        return all(map(values_equal, got, expected))
    if isinstance(expected, (set, frozenset)):
        return isinstance(got, (set, frozenset)) and len(got) == len(expected) and got == expected
    if isinstance(expected, dict):
        return isinstance(got, dict) and _mappings_equal(got, expected)
    return type(got) is type(expected) and got == expected


def _float_equal(got: Any, expected: float) -> bool:
    if not isinstance(got, (int, float, Fraction, Decimal)):
        return False
    try:
        number = float(got)
    except (OverflowError, ValueError):
        return False
    if math.isinf(expected):
        return isinstance(got, float) and got == expected
    return close(number, expected) or (math.isnan(number) and math.isnan(expected))


def _numbers_equal(got: Any, expected: Any) -> bool:
    if isinstance(got, Decimal):
        if not got.is_finite() or abs(got.adjusted()) > MAX_EXACT:
            return False  # comparing would write all the digits out
        if isinstance(expected, int) and expected.bit_length() > MAX_EXACT:
            return False
    return bool(got == expected)


def _mappings_equal(got: dict, expected: dict) -> bool:
    if len(got) != len(expected):
        return False
    if got.keys() != expected.keys():
        if not (all(type(k) is str for k in expected) and all(type(k) is int and abs(k) < 1 << 62 for k in got)):
            return False
        got = {str(key): value for key, value in got.items()}
        if got.keys() != expected.keys():
            return False
    return all(values_equal(got[key], value) for key, value in expected.items())
