"""The schema as a flat list of keys, with the comments that describe them. Standard library only."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import io
import tokenize
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any

from sdpo.config import schema


@dataclass(frozen=True)
class Field:
    """One key. `default` is the dataclass default; a section has `section` set to its dataclass."""

    key: str  # dotted, e.g. "data.seed"
    type: str  # as written in the schema, e.g. "int | None"
    default: Any
    meaning: str
    section: builtins.type | None = None

    @property
    def free_form(self) -> bool:
        """A dictionary whose own keys are the user's."""
        return self.type.startswith("dict")


@cache
def sections_and_fields() -> tuple[Field, ...]:
    """Every section and every key, depth first in schema order."""
    return tuple(_walk(schema.Config, ""))


@cache
def by_key() -> dict[str, Field]:
    """The keys that take a value, by dotted name."""
    return {f.key: f for f in sections_and_fields() if f.section is None}


def get(config: schema.Config, key: str) -> Any:
    """The value behind a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def _walk(owner: type, prefix: str) -> list[Field]:
    comments, hints, found = _comments(), typing.get_type_hints(owner), []
    for item in dataclasses.fields(owner):
        key = f"{prefix}{item.name}"
        hint = hints[item.name]
        meaning = comments.get((owner.__name__, item.name), "")
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            found.append(Field(key, hint.__name__, None, meaning or (hint.__doc__ or ""), section=hint))
            found.extend(_walk(hint, f"{key}."))
        else:
            found.append(Field(key, str(item.type), _default(item), meaning))
    return found


def _default(item: dataclasses.Field) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return None if item.default is dataclasses.MISSING else item.default


@cache
def _comments() -> dict[tuple[str, str], str]:
    """Comment behind each field, by (class name, field name): `name: type = default  # comment`."""
    owner, first, found = "", "", {}
    previous = ""
    for token in tokenize.generate_tokens(io.StringIO(inspect.getsource(schema)).readline):
        if token.type == tokenize.NAME:
            if previous == "class":
                owner = token.string
            if not first:
                first = token.string
            previous = token.string
        elif token.type == tokenize.COMMENT and first:
            found[owner, first] = token.string.lstrip("# ").strip()
        elif token.type in (tokenize.NEWLINE, tokenize.NL):
            first = ""
    return found
