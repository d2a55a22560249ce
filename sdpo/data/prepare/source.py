"""What a converter is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sdpo.errors import DataError
from sdpo.records import Prompt

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
