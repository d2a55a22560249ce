"""What an answer is: a number, a pair, a set, an interval, a matrix, a quantity, an equation - or nothing that is read.

Only whole answers are read. The innermost expressions become LaTeX for the computer algebra (`math_leaf`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .math_leaf import CLOSING, NAMES, closing_bracket, leaf, number_at, split_thousands
from .math_objects import Based, Leaf, Matrix, Named, Quantity, Ratio, Relation, Sequence, Set, Text, Union, Value
from .math_spelling import ACCENTS, FUNCTIONS, Group, Item, Items, Table, Unreadable, Words, tree
from .math_units import CURRENCIES, Unit, names_unit, read_unit

_RELATIONS = {"=": "=", r"\approx": "~", "<": "<", r"\le": "<=", ">": ">", r"\ge": ">=", r"\ne": "!=", r"\in": "in"}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPENED = frozenset(CLOSING.values())
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
          "twelve": 12, "sixteen": 16}  # fmt: skip
_BETWEEN = frozenset(["|", r"\frac", "/", ":", "_", "+"])
_FILLING = frozenset(["if", "for", "when", "where"])
_PUNCTUATION = frozenset([".", ",", ";", ":", "\\\\"])


def read(text: str, loose: bool = False) -> Value:
    """Raises Unreadable. loose: a letter after a number may be a unit (5 m)."""
    try:
        return _Reader(loose).answer(trimmed(tree(text)))
    except RecursionError:
        raise Unreadable("nested too deep") from None


def trimmed(items: Items) -> Items:
    """Without the end of a sentence."""
    end = len(items)
    while end and items[end - 1] in _PUNCTUATION:
        end -= 1
    return items[:end]


class _Reader:
    def __init__(self, loose: bool) -> None:
        self.loose = loose

    def answer(self, items: Items) -> Value:
        if not items:
            raise Unreadable("nothing")
        for read_as in (self._text, self._list, self._relation, self._plus_or_minus, self._union, self._bracketed,
                        self._table, self._ratio, self._based, self._quantity):  # fmt: skip
            value = read_as(items)
            if value is not None:
                return value
        return leaf(split_thousands(items, False))

    def _text(self, items: Items) -> Value | None:
        """Words only, or one bare word."""
        if items == (r"\mathbb", Group("R")):
            return _REALS
        if items == (r"\emptyset",) or items == (r"\{", r"\}"):
            return Set(())
        words = [item for item in items if item not in ("-", "'", ".", ",", "(", ")", r"\cdot")]
        if not all(isinstance(item, str) for item in words) or not words:
            return None
        bare = len(items) == 1 and words[0].isalpha() and len(words[0]) > 2
        running = isinstance(words[0], Words) and all(
            isinstance(item, Words) or number_at(words, i) for i, item in enumerate(words)
        )
        letters = all(len(word) == 1 or _joins(word) for word in words)  # B; A and C
        if not bare and (not running or letters):
            return None
        text = " ".join(word.lower() for word in words)
        return _REALS if text in ("all real numbers", "all reals", "real numbers") else Text(text)

    def _list(self, items: Items) -> Value | None:
        parts, joints = _split(split_thousands(items, False), lambda item: item in (",", ";") or _joins(item))
        if not joints:
            return None
        kept = [part for part in parts if part]
        if len(parts) - len(kept) > sum(map(_joins, joints)):
            raise Unreadable("a part of the list is missing")
        values = [value for part in kept for value in _spread(self.answer(part))]
        if "and" in joints and any(isinstance(value, Named) and value.bounded for value in values):
            raise Unreadable("several conditions at once")
        return values[0] if len(values) == 1 else Set(tuple(values), listed=True)

    def _relation(self, items: Items) -> Value | None:
        parts, found = _split(items, lambda item: item in _RELATIONS)
        if not found:
            return None
        operators = [_RELATIONS[str(joint)] for joint in found]
        if not parts[0] and operators[0] in "=~":
            parts, operators = parts[1:], operators[1:]
            if not operators:
                return self.answer(parts[0])
        name = _name(parts[0])
        if operators == ["in"]:
            if name is None:
                raise Unreadable("what is in the set")
            value = self.answer(parts[1])
            if not isinstance(value, Sequence | Set | Union) and parts[1][0] != r"\mathbb":
                raise Unreadable("no set")
            return Named(name, value)
        if name is not None and operators[0] in "=~":
            rest = [self.answer(part) for part in parts[1:-1] if _name(part) is None] + [self.answer(parts[-1])]
            operators = operators[len(operators) - len(rest) :]
            return Named(name, rest[0] if len(rest) == 1 else _relation(rest, operators[1:]))
        return self._range(parts, operators) or _relation([self.answer(part) for part in parts], operators)

    def _range(self, parts: list[Items], operators: list[str]) -> Value | None:
        """A name between bounds."""
        at = [i for i, part in enumerate(parts) if _name(part) is not None and "+" not in part]
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
        return Named(_name(parts[at[0]]) or "", Sequence(left, (low, high), right), bounded=True)

    def _plus_or_minus(self, items: Items) -> Value | None:
        signs = _signs(items)
        if not signs or items[0] == r"\{":
            return None
        if len(signs) > len(set(signs)):
            raise Unreadable("several independent signs")
        plus, minus = (_with_signs(items, {r"\pm": one, r"\mp": other}) for one, other in ("+-", "-+"))
        return Set((*_spread(self.answer(plus)), *_spread(self.answer(minus))), listed=True)

    def _union(self, items: Items) -> Value | None:
        parts, joints = _split(items, lambda item: item == r"\cup")
        return Union(tuple(self.answer(part) for part in parts)) if joints else None

    def _bracketed(self, items: Items) -> Value | None:
        left, right, inner = items[0], items[-1], items[1:-1]
        if len(items) < 2 or left not in ("(", "[", "]", r"\{", r"\langle") or not _balanced(inner):
            return None
        if left == r"\{" and right == r"\}":
            return self._set(inner)
        parts, joints = _split(split_thousands(inner, True), lambda item: item in (",", ";"))
        if left in ("(", "[", "]") and right in (")", "]", "[") and joints:
            values = tuple(self.answer(part) for part in parts)  # ]1,2[ is (1,2)
            return Sequence("[" if left == "[" else "(", values, "]" if right == "]" else ")")
        if left == r"\langle" and right == r"\rangle":
            return Sequence("(", tuple(self.answer(part) for part in parts), ")")
        if (left, right) in (("(", ")"), ("[", "]")):
            return self.answer(inner)
        return None

    def _set(self, inner: Items) -> Value:
        sides, bars = _split(inner, lambda item: item in ("|", ":"))
        if len(bars) == 1 and _name(_split(sides[0], lambda item: item == r"\in")[0][0]) is not None:
            described = self.answer(sides[1])
            if isinstance(described, Named):
                return described.value
            raise Unreadable("the description of a set")
        parts, joints = _split(split_thousands(inner, True), lambda item: item in (",", ";"))
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

    def _ratio(self, items: Items) -> Value | None:
        parts, joints = _split(items, lambda item: item == ":")
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
        base = next((item for item in reversed(subscript) if item not in ("base", "(", ")")), "")
        value = int(base) if str(base).isdecimal() else _BASES.get(str(base).lower(), 0)
        if not 2 <= value <= 36:
            raise Unreadable("a base")
        return Based(text.upper().lstrip("0") or "0", value)

    def _quantity(self, items: Items) -> Value | None:
        if items[0] in CURRENCIES and len(items) > 1:
            value = self.answer(items[1:])
            unit = read_unit(items[:1], False)[0]
            if isinstance(value, Quantity):
                return value if value.unit in (unit, Unit(())) else Quantity(value.value, unit * value.unit)
            return Quantity(value, unit)
        if items[0] == "-" and len(items) > 2 and items[1] in CURRENCIES:
            return self._quantity((items[1], "-", *items[2:]))
        for start in _unit_starts(items, self.loose):
            value, rest = items[:start], items[start:]
            following = next((i for i in range(1, len(rest)) if number_at(rest, i) and rest[i - 1] != "^"), None)
            try:
                unit, scale = read_unit(rest[:following], self.loose)
            except Unreadable:
                continue
            if following is not None:
                if rest[following - 1] in (r"\cdot", "-", "/"):
                    raise Unreadable("arithmetic with units")
                return self._compound(value, unit, rest[following:])
            number = self.answer(value)
            if isinstance(number, Quantity):
                raise Unreadable("a unit of a quantity")
            if scale:
                number = leaf((*split_thousands(value, False), r"\cdot", "10", "^", Group((str(scale),))))
            return Quantity(number, unit) if unit.dimensions else number
        return None

    def _compound(self, first: Items, unit: Unit, rest: Items) -> Value:
        """5 feet 6 inches, as so many of the first."""
        head, tail = leaf(split_thousands(first, False)), self.answer(rest)
        known = isinstance(tail, Quantity) and tail.unit.dimensions == unit.dimensions and tail.unit.size < unit.size
        if not known or not isinstance(tail.value, Leaf) or head.exact is None or tail.value.exact is None:
            raise Unreadable("several quantities")
        total = head.exact + tail.value.exact * tail.unit.size / unit.size
        return Quantity(Leaf.of(total), unit)


_REALS = Sequence("(", (Leaf(r"-\infty"), Leaf(r"\infty")), ")")


def _spread(value: Value) -> tuple[Value, ...]:
    """The answers of a list within a list, which is one with two signs."""
    if isinstance(value, Set) and value.listed:
        return value.parts
    if isinstance(value, Named) and isinstance(value.value, Set) and value.value.listed:
        return tuple(replace(value, value=part) for part in value.value.parts)
    return (value,)


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


def _split(items: Items, separates: Callable[[str], bool]) -> tuple[list[Items], list[str]]:
    """At the separators outside of brackets."""
    parts: list[list] = [[]]
    joints = []
    depth = 0
    for item in items:
        depth += (item in CLOSING) - (item in _OPENED)
        if depth == 0 and isinstance(item, str) and separates(item):
            joints.append(item)
            parts.append([])
        else:
            parts[-1].append(item)
    return [tuple(part) for part in parts], joints


def _balanced(items: Items) -> bool:
    depth = 0
    for item in items:
        depth += (item in CLOSING) - (item in _OPENED)
        if depth < 0:
            return False
    return depth == 0


def _cell(items: Items) -> Items:
    items = trimmed(items)
    while items and str(items[0]).lower() in _FILLING:
        items = items[1:]
    return items


def _name(items: Items) -> str | None:
    """What a value can have as its name: x, x_1, f(x), AB, \\vec v, Area of the square."""
    if not items:
        return None
    first, at = items[0], 1
    inner = items[1:-1]
    if first == "(" and items[-1] == ")" and "," in inner:
        names = [_name(part) for part in _split(inner, lambda item: item == ",")[0]]
        return None if None in names else _spelled(items)
    if _is_product(items):
        return _spelled(items)
    if first in (r"\angle", r"\triangle") or first == "m" and items[1:2] == (r"\angle",):
        at = 3 if first == "m" else 2
    elif first in ACCENTS and len(items) > 1:
        at = 2
    elif isinstance(first, Words):
        at = next((i for i, item in enumerate(items) if not isinstance(item, Words)), len(items))
    elif not (isinstance(first, str) and (first in NAMES or first.isalpha() and (len(first) == 1 or first.isupper()))):
        return None
    while at < len(items) and items[at] in ("_", "'", "^"):
        if items[at] == "^" and items[at + 1 : at + 2] != (Group(("-", "1")),):
            return None
        if items[at] == "^" and items[at + 2 : at + 3] != ("(",):
            return None  # the inverse of a function, not 1/x
        at += 1 if items[at] == "'" else 2
    if items[at : at + 1] == ("(",) and closing_bracket(items, at) == len(items) - 1:
        at = len(items)
    return _spelled(items) if at >= len(items) else None


def _is_product(items: Items) -> bool:
    """A length, an area, a product or a quotient of names: AB, |z|, xy, \\frac{AO}{OB}, S_{ABC} : S."""
    flat = [part for item in items for part in (item if isinstance(item, Group) else (item,))]
    if not all(isinstance(part, str) for part in flat) or any(isinstance(part, Words) for part in flat):
        return False
    numbers = [at for at, part in enumerate(flat) if part.isdecimal()]  # a subscript is part of a name, a factor is not
    if any(at == 0 or flat[at - 1] != "_" for at in numbers):
        return False
    named = all(part.isalpha() or part in _BETWEEN or part.isdecimal() for part in flat)
    return named and any(part.isalpha() for part in flat) and (len(items) > 1 or len(items[0]) > 1)


def _spelled(items: Items) -> str:
    """x_1 and x_{1} alike."""
    return "".join(_spelled(item) if isinstance(item, Group) else str(item) for item in items)


def _relation(sides: list[Value], operators: list[str]) -> Relation:
    return Relation(tuple(sides), tuple(operators))


def _unit_starts(items: Items, loose: bool) -> list[int]:
    """Where the unit may begin: first at the first word after the number."""
    starts = []
    depth = 0
    for i, item in enumerate(items):
        depth += (item in CLOSING) - (item in _OPENED)
        if depth or not i:
            continue
        degrees = item == "^" and items[i + 1 : i + 2] == (r"\circ",) and not set(items[:i]) & FUNCTIONS
        fraction = item == r"\frac" and all(isinstance(g, Group) and _all_units(g) for g in items[i + 1 : i + 3])
        if degrees or fraction or names_unit(item, loose):
            starts.append(i - 1 if items[i - 1] == "/" and i > 1 else i)
            if len(starts) == 3:
                break
    return starts


def _all_units(items: Items) -> bool:
    return any(names_unit(item, False) for item in items) and not any(number_at(items, i) for i in range(len(items)))
