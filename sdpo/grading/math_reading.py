"""What an answer is: a number, a pair, a set, an interval, a matrix, a quantity, an equation - or nothing that is read.

Only whole answers are read. The innermost expressions become LaTeX for the computer algebra (`math_leaf`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .math_leaf import CLOSING, OPENED, leaf, number_at, spelled, split, split_thousands
from .math_names import family, name_of
from .math_objects import (
    Based,
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
from .math_sets import all_but, all_holes, in_family
from .math_spelling import FUNCTIONS, Group, Item, Items, Table, Unreadable, Words, is_word, tree
from .math_units import CURRENCIES, Unit, begins_unit, names_unit, read_unit
from .math_vectors import combination

_RELATIONS = {"=": "=", r"\approx": "~", "<": "<", r"\le": "<=", ">": ">", r"\ge": ">=", r"\ne": "!=", r"\in": "in",
              r"\equiv": "mod"}  # fmt: skip
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
          "twelve": 12, "sixteen": 16}  # fmt: skip
_FILLING = frozenset(["if", "for", "when", "where"])
_LABELS = frozenset(["answer", "answers", "ans", "solution", "result"])
_LABEL = _LABELS | {"the", "my", "final", "correct", "right"}
_REAL_NUMBERS = r"\mathbbR"
_MODULI = frozenset([r"\pmod", r"\bmod", r"\mod", "mod"])
_PUNCTUATION = frozenset([".", ",", ";", ":", "\\\\"])


def read(text: str, loose: bool = False) -> Value:
    """Raises Unreadable. loose: a letter after a number may be a unit (5 m)."""
    try:
        return _Reader(loose).answer(trimmed(tree(text)))
    except RecursionError:
        raise Unreadable("nested too deep") from None


def trimmed(items: Items) -> Items:
    """Without "Answer:" and the end of a sentence."""
    end = len(items)
    while end and items[end - 1] in _PUNCTUATION:
        end -= 1
    colon = items.index(":", 0, 5) if ":" in items[: min(end, 5)] else 0
    label = [str(item).lower() for item in items[:colon]]
    return items[colon + 1 if label and set(label) <= _LABEL and label[-1] in _LABELS else 0 : end]


class _Reader:
    def __init__(self, loose: bool) -> None:
        self.loose = loose

    def answer(self, items: Items) -> Value:
        if not items:
            raise Unreadable("nothing")
        readings = (self._text, self._family, self._list, self._relation, self._plus_or_minus, self._union,
                    self._bracketed, self._table, self._combination, self._ratio, self._based,
                    self._quantity)  # fmt: skip
        for read_as in readings:
            value = read_as(items)
            if value is not None:
                return value
        return leaf(split_thousands(items, False))

    def _text(self, items: Items) -> Value | None:
        """Words only, or one bare word."""
        if spelled(items) == _REAL_NUMBERS:
            return _REALS
        if items == (r"\emptyset",) or items == (r"\{", r"\}"):
            return Set(())
        written = [item for item in items if isinstance(item, str)]
        words = tuple(item for item in written if item not in ("-", "'", ".", ",", "(", ")", r"\cdot"))
        if len(written) < len(items) or not words:
            return None
        bare = len(items) == 1 and _stands_alone(words[0])
        running = isinstance(words[0], Words) and all(
            isinstance(item, Words) or number_at(words, i) for i, item in enumerate(words)
        )
        letters = all(len(word) == 1 or _joins(word) for word in words)  # B; A and C
        if not bare and (not running or letters):
            return None
        text = " ".join(word.lower() for word in words)
        return _REALS if text in ("all real numbers", "all reals", "real numbers") else Text(text)

    def _family(self, items: Items) -> Value | None:
        found = family(items)
        if found is None:
            return None
        values = [in_family(value, found[1]) for value in _spread(self.answer(found[0]))]
        return values[0] if len(values) == 1 else Set(tuple(values), listed=True)

    def _list(self, items: Items) -> Value | None:
        parts, joints = split(split_thousands(items, False), lambda item: item in (",", ";") or _joins(item))
        if not joints:
            return None
        kept = [part for part in parts if part]
        if len(parts) - len(kept) > sum(map(_joins, joints)):
            raise Unreadable("a part of the list is missing")
        values = [value for part in kept for value in _spread(self.answer(part))]
        if "and" in joints and any(isinstance(value, Named) and value.bounded for value in values):
            raise Unreadable("several conditions at once")
        values = values if "or" in joints else all_holes(values)
        return values[0] if len(values) == 1 else Set(tuple(values), listed=True)

    def _relation(self, items: Items) -> Value | None:
        parts, found = split(items, lambda item: item in _RELATIONS)
        if not found:
            return None
        operators = [_RELATIONS[str(joint)] for joint in found]
        if not parts[0] and operators[0] in "=~":
            parts, operators = parts[1:], operators[1:]
            if not operators:
                return self.answer(parts[0])
        name = name_of(parts[0])
        if operators == ["in"]:
            if name is None:
                raise Unreadable("what is in the set")
            value = self.answer(parts[1])
            if not isinstance(value, Sequence | Set | Union | Holes) and parts[1][0] != r"\mathbb":
                raise Unreadable("no set")
            return Named(name, value)
        if "mod" in operators:
            return _congruence(name, self.answer, parts)
        if operators == ["!="]:
            other = parts[1] if name is not None else parts[0]
            name = name if name is not None else name_of(parts[1])
            if name is not None:
                return Named(name, all_but(_spread(self.answer(other))))
        if name is not None and operators[0] in "=~":
            rest = [self.answer(part) for part in parts[1:-1] if name_of(part) is None] + [self.answer(parts[-1])]
            operators = operators[len(operators) - len(rest) :]
            return Named(name, rest[0] if len(rest) == 1 else _relation(rest, operators[1:]))
        return self._range(parts, operators) or _relation([self.answer(part) for part in parts], operators)

    def _range(self, parts: list[Items], operators: list[str]) -> Value | None:
        """A name between bounds."""
        at = [i for i, part in enumerate(parts) if name_of(part) is not None and "+" not in part]
        if len(at) != 1 or len(parts) > 3 or not set(operators) <= set(_MIRRORED) or 0 < at[0] != 1:
            return None
        bounds: dict[str, tuple[Value, str, str]] = {"<": (_REALS.parts[0], "(", ")"), ">": (_REALS.parts[1], "(", ")")}
        for i, operator in enumerate(operators):
            side = 1 if i >= at[0] else -1
            seen = operator if side == 1 else _MIRRORED[operator]  # as seen from the name
            bounds[{"<": ">", ">": "<"}[seen[0]]] = (
                self.answer(parts[i + 1 if side == 1 else i]),
                "[" if "=" in seen else "(",
                "]" if "=" in seen else ")",
            )
        (low, left, _), (high, _, right) = bounds["<"], bounds[">"]
        return Named(name_of(parts[at[0]]) or "", Sequence(left, (low, high), right), bounded=True)

    def _plus_or_minus(self, items: Items) -> Value | None:
        signs = _signs(items)
        if not signs or items[0] == r"\{":
            return None
        if len(signs) > len(set(signs)):
            raise Unreadable("several independent signs")
        plus, minus = (_with_signs(items, {r"\pm": one, r"\mp": other}) for one, other in ("+-", "-+"))
        return Set((*_spread(self.answer(plus)), *_spread(self.answer(minus))), listed=True)

    def _union(self, items: Items) -> Value | None:
        parts, joints = split(items, lambda item: item in (r"\setminus", "-"))
        if len(parts) == 2 and spelled(parts[0]) == _REAL_NUMBERS and parts[1][:1] == (r"\{",):
            points = self.answer(parts[1])
            return all_but(points.parts) if isinstance(points, Set) else None
        parts, joints = split(items, lambda item: item == r"\cup")
        return Union(tuple(self.answer(part) for part in parts)) if joints else None

    def _bracketed(self, items: Items) -> Value | None:
        left, right, inner = items[0], items[-1], items[1:-1]
        if len(items) < 2 or left not in ("(", "[", "]", r"\{", r"\langle") or not _balanced(inner):
            return None
        if left == r"\{" and right == r"\}":
            return self._set(inner)
        parts, joints = split(split_thousands(inner, True), lambda item: item in (",", ";"))
        if left in ("(", "[", "]") and right in (")", "]", "[") and joints:
            values = tuple(self.answer(part) for part in parts)  # ]1,2[ is (1,2)
            return Sequence("[" if left == "[" else "(", values, "]" if right == "]" else ")")
        if left == r"\langle" and right == r"\rangle":
            return Sequence("(", tuple(self.answer(part) for part in parts), ")")
        if (left, right) in (("(", ")"), ("[", "]")):
            return self.answer(inner)
        return None

    def _set(self, inner: Items) -> Value:
        sides, bars = split(inner, lambda item: item in ("|", ":"))
        if len(bars) == 1 and name_of(split(sides[0], lambda item: item == r"\in")[0][0]) is not None:
            described = self.answer(sides[1])
            if isinstance(described, Named):
                return described.value
            raise Unreadable("the description of a set")
        if bars and family(inner) is not None:
            return self._family(inner) or Set(())
        parts, joints = split(split_thousands(inner, True), lambda item: item in (",", ";"))
        values = [value for part in parts for value in _spread(self.answer(part))]
        return Set(tuple(values))

    def _table(self, items: Items) -> Value | None:
        if len(items) != 1 or not isinstance(items[0], Table):
            if len(items) == 2 and items[0] == r"\{" and isinstance(items[1], Table):
                return self._table(items[1:])
            return None
        table = items[0]
        if table.kind in ("cases", "lines") and max(len(row) for row in table.rows) == 1 or table.kind == "lines":
            joined = [tuple(item for cell in row for item in cell) for row in table.rows]
            values = [self.answer(trimmed(row)) for row in joined]
            return values[0] if len(values) == 1 else Set(tuple(values), listed=True)
        rows = tuple(tuple(self.answer(_cell(cell)) for cell in row) for row in table.rows)
        if len({len(row) for row in rows}) != 1:
            raise Unreadable("rows of unequal length")
        return Matrix(table.kind, rows)

    def _combination(self, items: Items) -> Value | None:
        return combination(items, self.answer)

    def _ratio(self, items: Items) -> Value | None:
        parts, joints = split(items, lambda item: item == ":")
        if not joints:
            return None
        values = [self.answer(part) for part in parts]
        if isinstance(values[-1], Quantity):
            return Quantity(self._ratio_of(parts, (*values[:-1], values[-1].value)), values[-1].unit)
        return self._ratio_of(parts, tuple(values))

    def _ratio_of(self, parts: list[Items], values: tuple[Value, ...]) -> Ratio:
        first, *rest = [str(part[0]) if part else "" for part in parts]
        clock = len(parts[0]) == 1 and first.isdecimal() and int(first[:3]) <= 24
        clock = clock and all(len(text) == 2 and text.isdecimal() and text < "60" for text in rest)
        return Ratio(values, clock, clock and any(text[0] == "0" for text in rest))

    def _based(self, items: Items) -> Value | None:
        if len(items) < 3 or items[-2] != "_":
            return None
        digits = items[1:-3] if (items[0], items[-3]) == ("(", ")") else items[:-2]
        text = "".join(item for item in digits if isinstance(item, str)).replace(",", "")
        if not text.replace(".", "", 1).isalnum() or not any(c.isdigit() for c in text) or len(digits) > 40:
            return None
        if text[0].isalpha() and text[0].islower():
            return None  # a name with a subscript
        subscript = items[-1] if isinstance(items[-1], Group) else (items[-1],)
        base = str(next((item for item in reversed(subscript) if item not in ("base", "(", ")")), ""))
        value = int(base) if base.isdecimal() else _BASES.get(base.lower(), 0)
        if not 2 <= value <= 36:
            raise Unreadable("a base")
        return Based(text.upper().lstrip("0") or "0", value)

    def _quantity(self, items: Items) -> Value | None:
        if items[0] in CURRENCIES and len(items) > 1:
            value = self.answer(items[1:])
            unit = read_unit(items[:1])[0]
            if isinstance(value, Quantity):
                return value if value.unit in (unit, Unit(())) else Quantity(value.value, unit * value.unit)
            return Quantity(value, unit)
        if items[0] == "-" and len(items) > 2 and items[1] in CURRENCIES:
            return self._quantity((items[1], "-", *items[2:]))
        for start in _unit_starts(items, self.loose):
            amount, rest = items[:start], items[start:]
            following = next((i for i in range(1, len(rest)) if number_at(rest, i) and rest[i - 1] != "^"), None)
            try:
                unit, scale = read_unit(rest[:following])
            except Unreadable:
                continue
            if following is not None:
                if rest[following - 1] in (r"\cdot", "-", "/"):
                    raise Unreadable("arithmetic with units")
                return self._compound(amount, unit, rest[following:])
            number = self.answer(amount)
            if isinstance(number, Quantity):
                raise Unreadable("a unit of a quantity")
            if scale:
                number = leaf((*split_thousands(amount, False), r"\cdot", "10", "^", Group((str(scale),))))
            return Quantity(number, unit) if unit.dimensions else number
        return None

    def _compound(self, first: Items, unit: Unit, rest: Items) -> Value:
        """5 feet 6 inches, as so many of the first."""
        head, tail = leaf(split_thousands(first, False)), self.answer(rest)
        if not isinstance(tail, Quantity) or not isinstance(tail.value, Leaf):
            raise Unreadable("several quantities")
        known = tail.unit.dimensions == unit.dimensions and tail.unit.size < unit.size
        if not known or head.exact is None or tail.value.exact is None:
            raise Unreadable("several quantities")
        return Quantity(Leaf.of(head.exact + tail.value.exact * tail.unit.size / unit.size), unit)


_REALS = Sequence("(", (Leaf(r"-\infty"), Leaf(r"\infty")), ")")


def _spread(value: Value) -> tuple[Value, ...]:
    """The answers of a list within a list, which is one with two signs."""
    if isinstance(value, Set) and value.listed:
        return value.parts
    if isinstance(value, Named) and isinstance(value.value, Set) and value.value.listed:
        return tuple(replace(value, value=part) for part in value.value.parts)
    return (value,)


def _stands_alone(run: str) -> bool:
    """Letters that are a word where nothing else stands: no, east, ABC; while xy, xyz and abc are products."""
    if len(run) == 2:
        return run.isalpha() and ("o" in run or run.lower() in ("no", "on"))
    return len(run) > 2 and run.isalpha() and (is_word(run) or not run.islower())


def _congruence(name: str | None, answer: Callable[[Items], Value], parts: list[Items]) -> Named:
    """N = 42 (mod 100)."""
    modulus = next((i for i, item in enumerate(parts[1]) if item in _MODULI), len(parts[1]))
    residue = parts[1][: modulus - (parts[1][modulus - 1 : modulus] == ("(",))]
    if name is None or len(parts) > 2:
        raise Unreadable("what is congruent")
    return Named(f"{name}≡{spelled(parts[1][modulus + 1 :]).strip('()')}", answer(residue))


def _joins(item: object) -> bool:
    return item in ("and", "or")


def _signs(items: Items) -> list[object]:
    groups = [sign for item in items if isinstance(item, Group) for sign in _signs(item)]
    return groups + [item for item in items if item in (r"\pm", r"\mp")]


def _with_signs(items: Items, signs: dict[str, str]) -> Items:
    def signed(item: Item) -> Item:
        if isinstance(item, Group):
            return Group(_with_signs(item, signs))
        return signs.get(item, item) if isinstance(item, str) else item

    return tuple(signed(item) for item in items)


def _balanced(items: Items) -> bool:
    depth = 0
    for item in items:
        depth += (item in CLOSING) - (item in OPENED)
        if depth < 0:
            return False
    return depth == 0


def _cell(items: Items) -> Items:
    items = trimmed(items)
    while items and str(items[0]).lower() in _FILLING:
        items = items[1:]
    return items


def _relation(sides: list[Value], operators: list[str]) -> Relation:
    return Relation(tuple(sides), tuple(operators))


def _unit_starts(items: Items, loose: bool) -> list[int]:
    """Where the unit may begin: first at the first word after the number."""
    starts = []
    depth = 0
    for i, item in enumerate(items):
        depth += (item in CLOSING) - (item in OPENED)
        if depth or not i:
            continue
        degrees = item == "^" and items[i + 1 : i + 2] == (r"\circ",) and not set(items[:i]) & FUNCTIONS
        fraction = item == r"\frac" and all(isinstance(g, Group) and _all_units(g) for g in items[i + 1 : i + 3])
        if degrees or fraction or begins_unit(items, i, loose):
            starts.append(i - 1 if items[i - 1] == "/" and i > 1 else i)
            if len(starts) == 3:
                break
    return starts


def _all_units(items: Items) -> bool:
    return any(names_unit(item, False) for item in items) and not any(number_at(items, i) for i in range(len(items)))
