"""Are two answers the same? Exactly: nothing is rounded, and what cannot be shown to be equal is different.

Runs in the process that owns the computer algebra (`math_worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from fractions import Fraction
from typing import Any

from .math_algebra import Algebra
from .math_leaf import leaf
from .math_objects import (
    Based,
    Family,
    Holes,
    Leaf,
    Matrix,
    Named,
    Quantity,
    Ratio,
    Relation,
    Sequence,
    Set,
    Text,
    Union,
    Value,
)
from .math_reading import read
from .math_sets import intervals
from .math_spelling import Unreadable, tree
from .math_units import PERCENT, Unit

_DEGREE, _RADIAN = Unit((("angle", 1),)), Unit((("angle", 1),), Fraction(0))
Condition = tuple[Leaf, str]  # an expression that is =, !=, < or <= zero


class Equality:
    def __init__(self) -> None:
        self.algebra = Algebra()

    def texts(self, gold: str, given: str) -> bool | None:
        """None: the gold answer has no value."""
        try:
            ours = read(gold)
            if self.same(ours, read(given)):
                return True
            loose = read(gold, loose=True), read(given, loose=True)
            if all(isinstance(value, Quantity) for value in loose) and self.same(*loose):
                return True
            return None if isinstance(ours, Leaf) and not self.algebra.has_value(ours.latex) else False
        except Exception:  # Unreadable, or whatever the algebra comes upon in an expression that it cannot evaluate
            return False

    def same(self, gold: Value, given: Value) -> bool:
        if gold == given and not isinstance(given, Relation):
            return True
        if isinstance(gold, Holes) or isinstance(given, Holes):
            return self._holes(gold, given)
        if isinstance(gold, Named | Relation) or isinstance(given, Named | Relation):
            return self._statements(gold, given)
        if isinstance(gold, Quantity) or isinstance(given, Quantity):
            return self._quantities(gold, given)
        if isinstance(gold, Leaf) and isinstance(given, Leaf):
            return self._leaves(gold, given)
        if isinstance(gold, Family) or isinstance(given, Family):
            return isinstance(gold, Family) and isinstance(given, Family) and self._families(gold, given)
        if isinstance(gold, Based) or isinstance(given, Based):
            return self._digits(gold, given)
        if isinstance(gold, Ratio):
            return self._ratios(gold, given)
        if isinstance(gold, Text) or isinstance(given, Text):
            return False
        return self._collections(gold, given)

    def _holes(self, gold: Value, given: Value) -> bool:
        if isinstance(gold, Holes) and isinstance(given, Holes):
            return self._in_any_order(gold.points, given.points)
        if isinstance(gold, Named | Relation) or isinstance(given, Named | Relation):
            return self._statements(gold, given)
        return self.same(*(intervals(side) if isinstance(side, Holes) else side for side in (gold, given)))

    def _leaves(self, gold: Leaf, given: Leaf) -> bool:
        if gold.exact is not None and given.exact is not None:
            return gold.exact == given.exact
        return self.algebra.equal(gold.latex, given.latex)

    def _families(self, gold: Family, given: Family) -> bool:
        """Whole numbers may be counted from another one, and downwards: pi/4 + k pi is 5pi/4 - k pi."""
        if gold.domain != given.domain:
            return False
        everywhere = gold.domain == "Z" and self.algebra.same_progression(gold.value.latex, given.value.latex)
        return everywhere or self._leaves(gold.value, given.value)

    def _digits(self, gold: Value, given: Value) -> bool:
        """The answer may leave out the base that the gold answer names."""
        return isinstance(given, Leaf) and isinstance(gold, Based) and gold.digits == given.latex

    def _ratios(self, gold: Ratio, given: Value) -> bool:
        """In the same proportion; of two parts also as a fraction. Times of day are the same time."""
        if isinstance(given, Leaf) and given.exact is not None and given.exact.denominator > 1 and len(gold.parts) == 2:
            given = Ratio((Leaf.of(Fraction(given.exact.numerator)), Leaf.of(Fraction(given.exact.denominator))))
        if not isinstance(given, Ratio) or len(gold.parts) != len(given.parts):
            return False
        pairs = list(zip(gold.parts, given.parts, strict=True))
        if gold.clock and given.clock or any(not isinstance(p, Leaf) or p.exact == 0 for pair in pairs for p in pair):
            return all(self.same(*pair) for pair in pairs)
        if gold.timed or given.timed:
            return False
        first = pairs[0]
        return all(self._leaves(one * first[1], first[0] * other) for one, other in pairs[1:])  # type: ignore[operator]

    def _quantities(self, gold: Value, given: Value) -> bool:
        """A unit may be left out on one side; where both have one, they must measure the same."""
        if not (isinstance(gold, Quantity) and isinstance(given, Quantity)):
            quantity, other = (gold, given) if isinstance(gold, Quantity) else (given, gold)
            assert isinstance(quantity, Quantity)
            if quantity.unit.dimensions == ((PERCENT, 1),):
                return self._percentage(quantity.value, other)
            return self.same(gold.value if isinstance(gold, Quantity) else gold,
                             given.value if isinstance(given, Quantity) else given)  # fmt: skip
        if gold.unit == given.unit:
            return self.same(gold.value, given.value)
        if not gold.unit.measures_the_same(given.unit):
            return False
        if gold.unit.is_any or given.unit.is_any:
            return self.same(gold.value, given.value)
        values = [q.value * _size(q.unit) for q in (gold, given) if isinstance(q.value, Leaf)]
        return len(values) == 2 and self._leaves(*values)

    def _percentage(self, percent: Value, other: Value) -> bool:
        """50% is 0.5; the sign may be left out only where nobody can take the number for the fraction itself."""
        if not isinstance(other, Leaf) or not isinstance(percent, Leaf):
            return isinstance(other, type(percent)) and self.same(percent, other)
        if self._leaves(other, percent * Leaf.of(Fraction(1, 100))):
            return True
        return self.same(percent, other) and (other.exact is None or abs(other.exact) >= 1 or other.exact == 0)

    def _collections(self, gold: Value, given: Value) -> bool:
        if isinstance(gold, Sequence) and isinstance(given, Sequence):
            brackets = len(gold.parts) != 2 or (gold.left, gold.right) == (given.left, given.right)
            return brackets and self._in_order(gold.parts, given.parts)
        if isinstance(gold, Matrix) and isinstance(given, Matrix):
            return self._matrices(gold, given)
        for one, other in ((gold, given), (given, gold)):
            if isinstance(one, Sequence) and isinstance(other, Matrix):
                return other.kind == "matrix" and self._in_order(one.parts, _vector(other))
            if isinstance(one, Sequence) and isinstance(other, Set) and other.listed:
                return one.left == "(" and one.right == ")" and self._in_order(one.parts, other.parts)
        if isinstance(gold, Set | Union) and isinstance(given, Set | Union):
            return self._sets(gold, given)
        if isinstance(gold, Set) and len(gold.parts) == 1 and not gold.listed:
            return self.same(gold.parts[0], given)
        return isinstance(given, Set) and len(given.parts) == 1 and self.same(gold, given.parts[0])

    def _sets(self, gold: Set | Union, given: Set | Union) -> bool:
        if isinstance(gold, Union) != isinstance(given, Union):
            listed = gold if isinstance(gold, Set) else given
            intervals = all(isinstance(_bare(part), Sequence) for part in listed.parts)
            if not (isinstance(listed, Set) and listed.listed and intervals):
                return False
        named = [{part.name for part in side.parts if isinstance(part, Named)} for side in (gold, given)]
        if max(map(len, named)) > 1 and not all(named):  # x = 1, y = 2 without the names
            return self._in_order(gold.parts, given.parts)
        ours, theirs = ([*gold.parts], [*given.parts])
        if not all(isinstance(side, Set) and side.listed for side in (gold, given)):
            ours, theirs = self._without_repetition(ours), self._without_repetition(theirs)
        return self._in_any_order(ours, theirs)

    def _matrices(self, gold: Matrix, given: Matrix) -> bool:
        if gold.kind != given.kind or len(gold.rows) != len(given.rows) or len(gold.rows[0]) != len(given.rows[0]):
            return False
        if gold.kind == "cases":
            return self._in_any_order([Sequence("(", row, ";") for row in gold.rows],
                                      [Sequence("(", row, ";") for row in given.rows])  # fmt: skip
        return all(self._in_order(*rows) for rows in zip(gold.rows, given.rows, strict=True))

    def _in_order(self, gold: SequenceOf[Value], given: SequenceOf[Value]) -> bool:
        return len(gold) == len(given) and all(self.same(*pair) for pair in zip(gold, given, strict=True))

    def _in_any_order(
        self, gold: SequenceOf[Any], given: SequenceOf[Any], same: Callable[[Any, Any], bool] | None = None
    ) -> bool:
        if len(gold) != len(given):
            return False
        left = list(given)
        for part in gold:
            found = next((i for i, other in enumerate(left) if (same or self.same)(part, other)), None)
            if found is None:
                return False
            left.pop(found)
        return True

    def _without_repetition(self, parts: list[Value]) -> list[Value]:
        kept: list[Value] = []
        for part in parts:
            if not any(self.same(part, other) for other in kept):
                kept.append(part)
        return kept

    def _statements(self, gold: Value, given: Value) -> bool:
        """x = 5 answers 5 and the other way round; 7 = 5 answers nothing; equations may be multiplied by a constant."""
        if isinstance(gold, Named) and isinstance(given, Named):
            same_name = gold.name == given.name and self.same(gold.value, given.value)
            return same_name or self._conditions(gold, given)
        for value, chain in ((gold, given), (given, gold)):
            if not isinstance(chain, Relation) or isinstance(value, Named | Relation):
                continue
            if set(chain.operators) <= {"=", "~"}:
                return self._chain(value, chain)
        if isinstance(gold, Relation) or isinstance(given, Relation):
            return self._conditions(gold, given)
        if isinstance(gold, Named):  # x + y = 4 is a line, not 4, and n = 3 (mod 7) is many numbers
            return not {"+", "≡"} & set(gold.name) and self.same(gold.value, given)
        return isinstance(given, Named) and self.same(gold, given.value)

    def _chain(self, value: Value, chain: Relation) -> bool:
        """Steps that all hold, and a value with its rounding."""
        for left, operator, right in zip(chain.sides, chain.operators, chain.sides[1:], strict=False):
            if not (self.same(left, right) if operator == "=" else self._rounded(left, right)):
                return False
        return any(self.same(value, side) for side in chain.sides)

    def _rounded(self, value: Value, decimal: Value) -> bool:
        """Half a unit of the last written place."""
        if isinstance(value, Quantity) or isinstance(decimal, Quantity):
            value, decimal = (v.value if isinstance(v, Quantity) else v for v in (value, decimal))
        if not (isinstance(value, Leaf) and isinstance(decimal, Leaf)) or decimal.exact is None:
            return False
        places = next((p for p in range(40) if (decimal.exact * 10**p).denominator == 1), None)
        return places is not None and self.algebra.within(value.latex, decimal.exact, Fraction(1, 2 * 10**places))

    def _conditions(self, gold: Value, given: Value) -> bool:
        def same(one: Condition, other: Condition) -> bool:
            (first, operator), (second, its) = one, other
            return its == operator and self.algebra.proportional(first.latex, second.latex, "<" in operator)

        ours, theirs = _conditions_of(gold), _conditions_of(given)
        return bool(ours) and self._in_any_order(ours, theirs, same)


def _conditions_of(value: Value) -> list[Condition]:
    """What must hold, each as an expression compared with zero; [] where it cannot be said so."""
    if isinstance(value, Relation):
        sides, operators = value.sides, value.operators
    elif isinstance(value, Named):
        try:
            name: Value = leaf(tree(value.name))
        except Unreadable:
            return []
        inside = value.value
        if isinstance(inside, Sequence) and len(inside.parts) == 2:
            sides = (inside.parts[0], name, inside.parts[1])
            operators = ("<" if inside.left == "(" else "<=", "<" if inside.right == ")" else "<=")
        elif isinstance(inside, Holes) and len(inside.points) == 1:
            sides, operators = (name, inside.points[0]), ("!=",)
        else:
            sides, operators = (name, value.value), ("=",)
    else:
        return []
    conditions: list[Condition] = []
    for left, operator, right in zip(sides, operators, sides[1:], strict=False):
        if not isinstance(left, Leaf) or not isinstance(right, Leaf) or operator in ("in", "~"):
            return []
        if r"\infty" in left.latex or r"\infty" in right.latex:
            continue
        small, big = (right, left) if operator[0] == ">" else (left, right)
        conditions.append((small + big * Leaf.of(Fraction(-1)), operator.replace(">", "<")))
    return conditions


def _size(unit: Unit) -> Leaf:
    if unit == _DEGREE:
        return Leaf(r"\frac{\pi}{180}")
    return Leaf.of(Fraction(1) if unit == _RADIAN else unit.size)


def _vector(matrix: Matrix) -> tuple[Value, ...]:
    """The entries of a single row or column, nothing for a larger matrix."""
    if len(matrix.rows) == 1:
        return matrix.rows[0]
    return tuple(row[0] for row in matrix.rows) if len(matrix.rows[0]) == 1 else ()


def _bare(value: Value) -> Value:
    return value.value if isinstance(value, Named) else value
