"""Weights for a module of the same process: nothing is written, each group is gathered when it is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from sdpo.errors import RolloutError, problem

if TYPE_CHECKING:
    from sdpo.weights.source import Group

PREFIX = "in-process:"
_numbers = count()
_sent: dict[str, tuple[int, Iterable[Group]]] = {}  # the last version of each base


def new_base() -> str:
    return f"{PREFIX}{next(_numbers)}"


def remove_base(base: str) -> None:
    _sent.pop(base, None)


def send(groups: Iterable[Group], base: str, version: int, tied: Sequence[str] = ()) -> str:
    """See `Transport.send`. Weights that change before they are received are received as they are then."""
    _sent[base] = (version, groups)
    return base


def receive(place: str, version: int) -> Iterator[Group]:
    """See `Transport.receive`."""
    found, groups = _sent.get(place, (-1, ()))
    if found != version:
        raise RolloutError(problem("weights.version", found, f"{version}, as asked for"))
    yield from groups


def forget(place: str) -> None:
    """See `Transport.forget`."""
    remove_base(place)
