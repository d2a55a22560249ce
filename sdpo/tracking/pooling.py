"""Averages over unequal parts. A part reports `name -> (sum, count)`; parts may lack names that others have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

Sums = Mapping[str, tuple[float, float]]


def merge(parts: Iterable[Sums]) -> dict[str, tuple[float, float]]:
    """Adds sums and counts over micro-batches, ranks or groups. Names ending in `_max` / `_min` keep the extreme of the
    first entries of parts whose count is not 0.

    >>> merge([{"a": (2.0, 2.0)}, {"a": (0.0, 6.0), "b_max": (3.0, 1.0)}])
    {'a': (2.0, 8.0), 'b_max': (3.0, 1.0)}
    """
    merged: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, count) in part.items():
            if not count:
                continue
            if name not in merged:
                merged[name] = (value, count)
                continue
            old, old_count = merged[name]
            pick = _extreme(name)
            merged[name] = (pick(old, value) if pick else old + value, old_count + count)
    return merged


def pool(parts: Iterable[Sums]) -> dict[str, float]:
    """Mean of everything that was counted: sum of sums over sum of counts, never a mean of means. `_max` and `_min`
    names give the extreme. A name nobody counted is left out.

    >>> pool([{"accuracy": (2.0, 2.0)}, {"accuracy": (0.0, 6.0)}])
    {'accuracy': 0.25}
    """
    return {name: value if _extreme(name) else value / count for name, (value, count) in merge(parts).items()}


def _extreme(name: str) -> Callable[[float, float], float] | None:
    choose = max if name.endswith("_max") else min if name.endswith("_min") else None
    if choose is None:
        return None
    # A NaN wins whatever the order, so that it is seen.
    return lambda old, new: new if math.isnan(new) else old if math.isnan(old) else choose(old, new)
