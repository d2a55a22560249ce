"""Integers of any length in rows, as JSON and as Python. Python's own readers refuse those of thousands of digits,
because they are quadratic; that limit stays, for whatever a model or a program wrote."""

from __future__ import annotations

import io
import json
import re
import tokenize
from typing import Any

DIGITS = 4000  # that int() reads at once; its own limit is 4300
LONG = re.compile(r"[0-9_]{4001}")


def read_json(text: str) -> Any:
    """Raises ValueError and RecursionError as json.loads() does."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer beyond the limit
        return json.loads(text, parse_int=read_integer)


def read_integer(text: str) -> int:
    """int() for any number of digits, in less than quadratic time."""
    if len(text) <= DIGITS:
        return int(text)
    if text[0] in "+-":
        return int(text[0] + "1") * read_integer(text[1:])
    low = len(text) // 2
    return read_integer(text[:-low]) * 10**low + read_integer(text[-low:])


def in_pieces(code: str) -> str:
    """Python text with long decimal integers written as sums, which the parser reads. Raises tokenize.TokenError and
    SyntaxError."""
    if not LONG.search(code):
        return code
    lines = code.split("\n")
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(code).readline))):
        digits = token.string.replace("_", "")
        if token.type == tokenize.NUMBER and len(digits) > DIGITS and digits.isdecimal():
            (row, start), (_, end) = token.start, token.end
            line = lines[row - 1]
            lines[row - 1] = f"{line[:start]}({_as_sum(digits)}){line[end:]}"
    return "\n".join(lines)


def _as_sum(digits: str) -> str:
    ends = range(len(digits), 0, -DIGITS)
    return " + ".join(
        f"{digits[max(0, end - DIGITS) : end].lstrip('0') or '0'} * 10 ** {len(digits) - end}" for end in ends
    )
