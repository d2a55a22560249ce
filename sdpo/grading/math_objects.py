"""What a mathematical answer can be."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from .math_units import Unit


@dataclass(frozen=True)
class Leaf:
    """latex: for the algebra. exact: its value where it is a plain number."""

    latex: str
    exact: Fraction | None = None

    @staticmethod
    def of(value: Fraction) -> Leaf:
        sign, top = "-" if value < 0 else "", abs(value.numerator)
        text = f"{top}" if value.denominator == 1 else rf"(\frac{{{top}}}{{{value.denominator}}})"
        return Leaf(sign + text, value)

    def __add__(self, other: Leaf) -> Leaf:
        if self.exact is not None and other.exact is not None:
            return Leaf.of(self.exact + other.exact)
        return Leaf(f"({self.latex})+({other.latex})")

    def __mul__(self, other: Leaf) -> Leaf:
        if self.exact is not None and other.exact is not None:
            return Leaf.of(self.exact * other.exact)
        return Leaf(rf"({self.latex})\cdot({other.latex})")


@dataclass(frozen=True)
class Sequence:
    """In round or square brackets, in angles or in none at all: a pair, a point, an interval."""

    left: str
    parts: tuple[Value, ...]
    right: str


@dataclass(frozen=True)
class Set:
    """Order does not count. listed: written without braces, so that it may also be a sequence."""

    parts: tuple[Value, ...]
    listed: bool = False


@dataclass(frozen=True)
class Union:
    parts: tuple[Value, ...]


@dataclass(frozen=True)
class Matrix:
    kind: str
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True)
class Quantity:
    value: Value
    unit: Unit


@dataclass(frozen=True)
class Based:
    """Digits with a base: 52_8."""

    digits: str
    base: int


@dataclass(frozen=True)
class Ratio:
    """clock: it may be a time of day (2:15). timed: it can be nothing else (2:05)."""

    parts: tuple[Value, ...]
    clock: bool = False
    timed: bool = False


@dataclass(frozen=True)
class Holes:
    """All real numbers but these."""

    points: tuple[Leaf, ...]


@dataclass(frozen=True)
class Family:
    """An expression in an index that runs over a set: k*pi for all integers k."""

    value: Leaf
    domain: str


@dataclass(frozen=True)
class Text:
    words: str


@dataclass(frozen=True)
class Named:
    """x = 5, f(x) = x + 1, x in (1, 2), 1 < x < 2. A name that ends in a modulus is congruent to the value."""

    name: str
    value: Value
    bounded: bool = False  # by inequalities


@dataclass(frozen=True)
class Relation:
    """operators stand between the sides: =, ~ (rounded), <, <=, !=."""

    sides: tuple[Value, ...]
    operators: tuple[str, ...]


Value: TypeAlias = (
    "Leaf | Sequence | Set | Union | Holes | Family | Matrix | Quantity | Based | Ratio | Text | Named | Relation"
)
