"""Vectors and matrices times numbers, and their sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from .math_leaf import closing_bracket, leaf, split, split_thousands
from .math_objects import Leaf, Matrix, Sequence, Value
from .math_spelling import FUNCTIONS, Items, Table, Unreadable


def combination(items: Items, answer: Callable[[Items], Value]) -> Value | None:
    """2(1,2)+(0,1) is (2,5); None where not every term has a vector as its last factor."""
    terms, signs = split(items, lambda item: item in ("+", "-"))
    terms, signs = (terms[1:], signs) if not terms[0] else (terms, ["+", *signs])
    starts = [_vector_start(term) for term in terms]
    if None in starts:
        return None
    shape: Value | None = None
    total: list[Leaf] = []
    for sign, term, start in zip(signs, terms, starts, strict=True):
        vector, factor = answer(term[start:]), Leaf.of(Fraction(1 if sign == "+" else -1))
        written = term[: start - (term[start - 1] == r"\cdot")] if start else ()
        factor = factor * leaf(split_thousands(written, False)) if written else factor
        entries = [entry * factor for entry in _entries(vector)]
        if shape is not None and _shape(vector) != _shape(shape):
            raise Unreadable("vectors of several shapes")
        shape, total = vector, [a + b for a, b in zip(total, entries, strict=True)] if total else entries
    if isinstance(shape, Matrix):
        width = len(shape.rows[0])
        return replace(shape, rows=tuple(tuple(total[at : at + width]) for at in range(0, len(total), width)))
    return Sequence("(", tuple(total), ")")


def _vector_start(term: Items) -> int | None:
    """Letters before a bracket make a function of it: f(1,2)."""
    last = term[-1] if term else ""
    if isinstance(last, Table):
        return len(term) - 1 if last.kind == "matrix" else None
    if last not in (")", r"\rangle"):
        return None
    ends = (at for at, item in enumerate(term) if item in ("(", r"\langle") and "," in term[at:])
    start = next((at for at in ends if closing_bracket(term, at) == len(term) - 1), None)
    factor = term[:start] if start else ()
    named = any(str(item).isalpha() or item in FUNCTIONS or item in ("_", "'", ",") for item in factor)
    return None if named and factor[-1] != r"\cdot" else start


def _entries(vector: Value) -> list[Leaf]:
    parts = [part for row in vector.rows for part in row] if isinstance(vector, Matrix) else []
    parts = list(vector.parts) if isinstance(vector, Sequence) else parts
    entries = [part for part in parts if isinstance(part, Leaf)]
    if not parts or len(entries) < len(parts):
        raise Unreadable("no vector of expressions")
    return entries


def _shape(vector: Value) -> tuple[int, int]:
    return (len(vector.rows), len(vector.rows[0])) if isinstance(vector, Matrix) else (0, len(_entries(vector)))
