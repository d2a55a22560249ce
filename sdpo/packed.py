"""Numbers of records: side by side in memory, as C has them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pickle import PickleBuffer
from typing import Any, Self


class _Packed(array):
    """A list needs nine times as much memory for ids, and is pickled number by number. Equal to any sequence of the
    same numbers, and a list where one is added."""

    CODE = ""
    __hash__ = None  # as a list

    def __new__(cls, numbers: Iterable[float] | bytes = ()) -> Self:
        return super().__new__(cls, cls.CODE, numbers)

    def __eq__(self, other: object) -> bool:
        return self.tolist() == list(other) if isinstance(other, list | tuple) else super().__eq__(other)

    def __ne__(self, other: object) -> bool:  # array has one of its own
        return not self == other

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return type(self)(found) if isinstance(place, slice) else found

    def __add__(self, other: Any) -> Any:
        return self.tolist() + other if isinstance(other, list) else super().__add__(other)

    def __radd__(self, other: list) -> list:
        return other + self.tolist()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        memory = PickleBuffer(self) if protocol >= 5 else self.tobytes()  # Ray lays a buffer into its store as it is
        return _unpacked, (type(self), memory)

    def __deepcopy__(self, memo: object) -> Self:
        return type(self)(self)

    def __repr__(self) -> str:
        return repr(self.tolist())

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Self:
        """The same object, when it is packed already: records of one group share their ids."""
        return numbers if isinstance(numbers, cls) else cls(numbers)


def _unpacked(kind: type[_Packed], memory: Any) -> _Packed:
    numbers = kind()
    numbers.frombytes(PickleBuffer(memory).raw())
    return numbers


class TokenIds(_Packed):
    """Token ids, int32."""

    CODE = "i"


class LogProbs(_Packed):
    """Natural logs of probabilities, float64."""

    CODE = "d"
