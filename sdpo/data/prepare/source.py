"""What a converter is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sdpo.errors import DataError
from sdpo.records import Prompt


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
    date_field: str | None = None  # field with the row's date, for sources that can be cut to a window


def text_field(row: Mapping[str, Any], name: str) -> str:
    """A field that must be text and not blank."""
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{name}: got {value!r}; it must be text")
    return value
