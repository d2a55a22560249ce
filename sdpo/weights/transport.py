"""Ways for weights to go. A further one is a module here with these two functions, and a line in `transport_of`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from sdpo.weights import in_process, shared_memory
from sdpo.weights.source import Group


class Transport(Protocol):
    """Between `send` and `receive` only a short string passes, through whoever drives both sides."""

    def send(self, groups: Iterable[Group], base: str, version: int, tied: Sequence[str] = ()) -> str:
        """Sends full tensors by name; returns the place to receive them from. tied: names left out (`WeightSource`).
        base: what `new_base` of the module made, once for all versions. Called where the tensors are gathered."""
        ...

    def receive(self, place: str, version: int) -> Iterator[Group]:
        """The groups in the order they were sent, on whatever device they arrive. Raises RolloutError for another
        version than asked for and for weights that are not whole."""
        ...


def transport_of(place: str) -> Transport:
    """Of a base, or of a place that `send` returned."""
    return in_process if place.startswith(in_process.PREFIX) else shared_memory
