"""What a converter is made of."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sdpo.errors import DataError
from sdpo.records import Prompt

Value = TypeVar("Value", str, list, dict)
Division = Literal["source", "questions", "tests"]


@dataclass(frozen=True)
class HubFiles:
    """Where the hub has the data set: files of `id` whose whole paths match `patterns`; their folders are kept from
    `folder` on."""

    id: str
    patterns: tuple[str, ...] = ("*.parquet",)
    folder: str = ""


@dataclass(frozen=True)
class Source:
    """One data set in its publisher's format.

    `convert(row, split)` makes the prompt (its uid is not written) or raises DataError saying why the row is unusable.
    """

    name: str
    convert: Callable[[Mapping[str, Any], str], Prompt]
    origin: str  # where the files come from
    licence: str
    description: str
    hub: HubFiles | None = None  # None: not on the hub in this format
    date_field: str | None = None  # field with the row's date, for sources that can be cut to a window
    selects: Callable[[Mapping[str, Any]], bool] | None = None  # rows that belong to the set; None: all
    place: Callable[[Mapping[str, Any], str, str], tuple[str, str]] | None = None  # (row, folder, split) -> those two
    division: Division = "source"  # how to divide when nothing is asked for


def text_field(row: Mapping[str, Any], name: str) -> str:
    """A field that must be text and not blank."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{name}: got {value!r}; it must be text")
    return value


def optional(row: Mapping[str, Any], name: str, kind: type[Value]) -> Value:
    """A field that may be absent or null: empty then. Raises DataError for one of another kind."""
    value = row.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise DataError(f"{name}: got {value!r:.60}; it must be {_KINDS[kind]}")
    return value


_KINDS = {str: "text", list: "a list", dict: "an object"}


def parse_json(text: str, where: str) -> Any:
    """Raises DataError for what is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error


def parse_python(text: str, where: str) -> ast.Module:
    """Raises DataError for what is not Python, or is nested too deeply (a MemoryError of the parser's own stack)."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{where}: not Python: {error or type(error).__name__}") from error
