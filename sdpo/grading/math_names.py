"""What a value is called in an answer, and the parameter of a family of answers."""

from __future__ import annotations

import re

from .math_leaf import closing_bracket, spelled, split
from .math_spelling import ACCENTS, FUNCTIONS, INDEX, NAMES, Group, Items, Words

_OPERATORS = FUNCTIONS - {r"\log", r"\ln", r"\exp"} | {r"\det", r"\dim", r"\deg", r"\arg", r"\Pr", r"\#"}
_DENIALS = frozenset(["not", "never", "isn", "isnt", "aint", "wrong", "incorrect", "false", "invalid"])
_MARKS = {"_": "_", "^": "^", "'": "'"} | dict.fromkeys(["|", r"\lfloor", r"\rfloor", r"\lceil", r"\rceil"], "|")
_MARKS |= dict.fromkeys(["+", "/", ":", r"\cdot", r"\frac"], "+")
# Of the kinds below: a label, or names and what is built of them alone. A power is a quantity of its own only where
# nobody takes it for a step on the way to the name: AB^2, |z|^2, \sin^2 x.
_NAMED = re.compile(
    r"w+(?:_.|[an]|v*[xA])?"
    r"|(?=.*[xgAfb])(?:\+|\|(?:\^1)?|b|f(?:_.)*(?:\^1)?(?:a|1?v*[xA])|(?:v+[xgA]|A)(?:_.|')*(?:\^1)?[an]?"
    r"|[xg](?:_.|')*(?:\^i(?=[an]))?[an]?)+"
)
_INTEGERS = frozenset(["integer", "integers"])
_FAMILY_WORDS = _INTEGERS | {"for", "any", "all", "every", "each", "where", "with", "is", "an", "and", "some"}


def name_of(items: Items) -> str | None:
    """What a value can have as its name: x, x_1, f(3), AB, \\vec v, Area of ABC, (x, y), m+n, \\frac{AO}{OB}, |z|,
    \\lfloor r\\rfloor, [ABC], \\gcd(a, 12), \\sin A, AB^2; neither 2x nor x^2."""
    inner = items[1:-1]
    if items[:1] == ("(",) and items[-1] == ")" and "," in inner:
        names = [name_of(part) for part in split(inner, lambda item: item == ",")[0]]
        return None if None in names else spelled(items)
    if not _DENIALS.isdisjoint(str(item).lower() for item in items if isinstance(item, Words)):
        return None
    return spelled(items) if _NAMED.fullmatch(_kinds(items)) else None


def _kinds(items: Items) -> str:
    """One letter an item: x a name, A several capitals, w a word, v what stands before a name, f a function, a and n an
    argument in brackets with and without letters, b the figure in [ABC], g names in braces, i the inverse's -1."""
    kinds, at = "", 0
    while at < len(items):
        item, at = items[at], at + 1
        if item in ("(", "["):
            end = closing_bracket(items, at - 1)
            inner, at = items[at:end], end + 1
            figure = item == "[" and len(inner) == 1 and str(inner[0]).isupper() and len(str(inner[0])) > 2
            kinds += "b" if figure else "a" if _has_letters(inner) else "n"
        elif isinstance(item, Group):
            kinds += "i" if item == ("-", "1") else "g" if _NAMED.fullmatch(_kinds(item)) else "o"
        elif not isinstance(item, str):
            kinds += "?"
        elif isinstance(item, Words):
            kinds += "w"
        elif item in ACCENTS or item in (r"\angle", r"\triangle"):
            kinds += "v"
        elif item.isalpha() or item in NAMES:
            kinds += "A" if item.isupper() and len(item) > 1 else "x"
        else:
            kinds += "f" if item in _OPERATORS else "1" if item.isdecimal() else _MARKS.get(item, "?")
    return kinds


def _has_letters(items: Items) -> bool:
    groups = (item for item in items if isinstance(item, Group))
    return any(str(item).isalpha() or item in NAMES for item in items) or any(map(_has_letters, groups))


def family(items: Items) -> tuple[Items, str] | None:
    """A family of answers with its parameter renamed, and what that runs over: k\\pi, k\\in Z; for every integer k."""
    end = len(items) - (items[-1:] == (")",))
    if items[end - 3 : end - 1] == (r"\in", r"\mathbb"):
        start, name, domain = end - 4, items[end - 4], spelled(items[end - 1 : end])
    elif _INTEGERS & {str(item).lower() for item in items if isinstance(item, Words)}:
        commas = [i for i, item in enumerate(items) if item == ","]
        start = commas[-1] + 1 if commas else next(i for i, item in enumerate(items) if isinstance(item, Words))
        names = [item for item in items[start:] if str(item).lower() not in _FAMILY_WORDS]
        if len(names) != 1:
            return None
        name, domain = names[0], "Z"
    else:
        return None
    body = items[:start]
    while body and body[-1] in (",", ";", "(", "|"):
        body = body[:-1]
    renamed = _renamed(body, str(name))
    return (renamed, domain) if len(str(name)) == 1 and renamed != body else None


def _renamed(items: Items, name: str) -> Items:
    return tuple(
        Group(_renamed(item, name)) if isinstance(item, Group) else INDEX if item == name else item for item in items
    )
