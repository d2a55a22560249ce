"""Weights for a module of the same process: nothing is written, each group is gathered when it is taken."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from sdpo.errors import RolloutError, problem
from sdpo.weights.version import Label

if TYPE_CHECKING:
    from sdpo.weights.source import Group

PREFIX = "in-process:"
STREAMS = False
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


def receive(place: str, version: int) -> Generator[Group, None, Label]:
    """See `Transport.receive`."""
    found, groups = _sent.get(place, (-1, ()))
    if found != version:
        raise RolloutError(problem("weights.version", found, f"{version}, as asked for"))
    tensors = size = 0
    for group in groups:
        tensors, size = tensors + len(group), size + sum(tensor.nbytes for tensor in group.values())
        yield group
    return Label(version, tensors, size)


def forget(place: str) -> None:
    """See `Transport.forget`."""
    remove_base(place)
