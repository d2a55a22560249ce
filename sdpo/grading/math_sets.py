"""Infinite sets: all real numbers but some, and families of answers."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from itertools import pairwise

from .math_objects import Family, Holes, Leaf, Named, Sequence, Union, Value
from .math_spelling import Unreadable


def intervals(holes: Holes) -> Union:
    """Raises Unreadable where the order of the points is not known."""
    if len(holes.points) > 1 and any(point.exact is None for point in holes.points):
        raise Unreadable("points in an unknown order")
    ordered = sorted(holes.points, key=lambda point: point.exact or 0)
    ends = [Leaf(r"-\infty"), *ordered, Leaf(r"\infty")]
    return Union(tuple(Sequence("(", pair, ")") for pair in pairwise(ends)))


def in_family(value: Value, domain: str) -> Value:
    if isinstance(value, Named):
        return replace(value, value=in_family(value.value, domain))
    if not isinstance(value, Leaf):
        raise Unreadable("a family of something else than expressions")
    return Family(value, domain)


def all_but(points: SequenceOf[Value]) -> Holes:
    leaves = tuple(point for point in points if isinstance(point, Leaf))
    if len(leaves) < len(points):
        raise Unreadable("all numbers but something else")
    return Holes(leaves)


def all_holes(values: list[Value]) -> list[Value]:
    """x != 1, x != 2, or x != 1, 2, as one condition."""
    first = values[0]
    if not (isinstance(first, Named) and isinstance(first.value, Holes)):
        return values
    points = [*first.value.points]
    for value in values[1:]:
        if isinstance(value, Named) and value.name == first.name and isinstance(value.value, Holes):
            points += value.value.points
        elif isinstance(value, Leaf):
            points.append(value)
        else:
            return values
    return [Named(first.name, Holes(tuple(points)))]
