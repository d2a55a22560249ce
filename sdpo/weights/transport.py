"""Ways for weights to go. A further one is a module with the functions of `Transport` and a line in `transport_of`.

place = publish(WeightSource(student.lm, dtype), base, version, rank)  # on every rank of the trainer
load_into(lm, transport_of(place).receive(place, version))             # wherever they are wanted
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from sdpo.weights import gloo, in_process, shared_memory
from sdpo.weights.version import Label

if TYPE_CHECKING:
    from sdpo.weights.source import Group


class Transport(Protocol):
    """Between `send` and `receive` only a short string passes, through whoever drives both sides."""

    # Sender and receivers work at the same time: the place is the base, which is made for one transfer where the sender
    # is. Else a base serves all versions, and what was sent lies at the place until it is received.
    STREAMS: bool

    def send(self, groups: Iterable[Group], base: str, version: int, tied: Sequence[str] = ()) -> str:
        """Sends full tensors by name; returns the place to receive them from. tied: names left out (`WeightSource`).
        base: what `new_base` of the module made. Called where the tensors are gathered."""
        ...

    def receive(self, place: str, version: int) -> Generator[Group, None, Label]:
        """The groups in the order they were sent, on whatever device they arrive. Raises RolloutError for another
        version than asked for and for weights that are not whole."""
        ...

    def forget(self, place: str) -> None:
        """What was sent is not needed any more, before a next version replaces it."""
        ...


def transport_of(place: str) -> Transport:
    """Of a base, or of a place that `send` returned."""
    streamed = gloo if place.startswith(gloo.PREFIX) else shared_memory
    return in_process if place.startswith(in_process.PREFIX) else streamed


class Source(Protocol):
    """Tensors that all ranks gather together (`WeightSource`, `AdapterSource`)."""

    @property
    def tied(self) -> Sequence[str]: ...

    def gathered(self) -> Iterator[Group]: ...

    def join_in(self) -> None: ...


def publish(source: Source, base: str, version: int, rank: int = 0) -> str:
    """Sends from rank 0 what all ranks gather. Returns the place, on the others ""."""
    if rank:
        source.join_in()
        return ""
    return transport_of(base).send(source.gathered(), base, version, source.tied)
