"""The innermost expressions of an answer, as exact numbers and as LaTeX that the computer algebra reads without
guessing: decimals as fractions, products with their sign where a reader could take them for something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from .math_objects import Leaf
from .math_spelling import ACCENTS, FUNCTIONS, INDEX, NAMES, Group, Items, NoValue, Table, Unreadable, Words

MAX_DIGITS = MAX_EXPONENT = 2000  # of a number that is written out
MAX_LITERAL = 12  # tokens of one number: 0.1 \\dot{2} 3 \\dot{4}
CLOSING = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
OPENED = frozenset(CLOSING.values())
_APPLIED = frozenset("fghFGPQ")  # letters that a bracket makes functions, not factors
_SIGNS = {"+": "+", "-": "-", "/": "/", "!": "!", "|": "|", r"\cdot": r"\cdot ", r"\div": r"\div "}
_CONSTANTS = frozenset([r"\pi", r"\infty", "e"])
# What the library reads as something else than a name.
_RENAMED = {INDEX: r"\text{index}", "d": r"\text{d}", "I": r"\text{I}", "i": r"\text{imaginary}",
            r"\gamma": r"\text{smallgamma}", r"\Gamma": r"\text{largegamma}", r"\ell": r"\text{ell}",
            r"\Psi": r"\text{Psi}"}  # fmt: skip
_NUMBER = re.compile(r"(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")


def leaf(items: Items) -> Leaf:
    """Raises Unreadable for whatever is not an expression from end to end."""
    plain = _plain(items)
    return Leaf.of(plain) if plain is not None else Leaf(_Writer(items).write())


def number_at(items: Items, at: int) -> str:
    """The number that stands there, "" for anything else."""
    item = items[at] if at < len(items) else ""
    return item if isinstance(item, str) and item[:1] in "0123456789." and item != "." else ""


def split_thousands(items: Items, in_brackets: bool) -> Items:
    """1,234 is one number; in brackets it is two, unless the second could not stand alone: (1,024)."""
    out: list = []
    depth = 0  # of the arguments of a function
    for i, item in enumerate(items):
        if depth or item == "(" and i and items[i - 1] in FUNCTIONS:
            depth += (item in CLOSING) - (item in OPENED)
        if "," in (number := number_at(items, i)):
            groups = number.split(",")
            if (in_brackets or depth) and not any(group.startswith("0") for group in groups[1:]):
                out.extend(part for group in groups for part in (group, ","))
                out.pop()
                continue
            item = number.replace(",", "")
        out.append(item)
    return tuple(out)


def split(items: Items, separates: Callable[[str], bool]) -> tuple[list[Items], list[str]]:
    """At the separators outside of brackets."""
    parts: list[list] = [[]]
    joints = []
    depth = 0
    for item in items:
        depth += (item in CLOSING) - (item in OPENED)
        if depth == 0 and isinstance(item, str) and separates(item):
            joints.append(item)
            parts.append([])
        else:
            parts[-1].append(item)
    return [tuple(part) for part in parts], joints


def spelled(items: Items) -> str:
    """x_1 and x_{1} alike."""
    return "".join(spelled(item) if isinstance(item, Group) else str(item) for item in items)


def closing_bracket(items: Items, at: int) -> int:
    depth = 0
    for i in range(at, len(items)):
        depth += (items[i] in CLOSING) - (items[i] in OPENED)
        if depth == 0:
            return i
    raise Unreadable("a bracket is not closed")


def _value(token: str) -> Fraction | None:
    whole, part, exponent = _NUMBER.fullmatch(token.replace(",", "")).groups()  # type: ignore[union-attr]
    if exponent and (len(exponent) > 6 or abs(int(exponent)) > MAX_EXPONENT):
        return None
    if len(whole) + len(part or "") > MAX_DIGITS:
        return None
    digits = Fraction(int(whole + (part or "") or 0), 10 ** len(part or ""))
    return digits * Fraction(10) ** int(exponent or 0)


def _whole(items: object) -> int | None:
    """The integer in an argument's braces."""
    if isinstance(items, Group) and len(items) == 1 and isinstance(items[0], str) and items[0].isdecimal():
        return int(items[0])
    return None


def _plain(items: Items) -> Fraction | None:
    """The value of a signed integer, decimal, repeating decimal, fraction, mixed number or a x 10^n."""
    start = next((i for i, item in enumerate(items) if item not in ("+", "-")), len(items))
    sign, items = (-1) ** items[:start].count("-"), items[start:]
    if not items:
        return None
    value, used = _literal(items)
    if value is None or used == len(items):
        return None if value is None else sign * value
    if items[used] == "/" and number_at(items, used + 1):
        below, more = _literal(items[used + 1 :])
        return sign * _quotient(value, below) if below is not None and used + 1 + more == len(items) else None
    if items[used] in (r"\cdot", "x") and items[used + 1 : used + 3] == ("10", "^") and len(items) == used + 4:
        power = items[-1] if isinstance(items[-1], Group) else Group((items[-1],))
        text = "".join(map(str, power))
        if re.fullmatch(r"[+-]?\d{1,6}", text) and abs(int(text)) <= MAX_EXPONENT:
            return sign * value * Fraction(10) ** int(text)
    return None


def _literal(items: Items) -> tuple[Fraction | None, int]:
    """The number that the items begin with, and how many of them it takes."""
    if items[0] == r"\frac":
        top, bottom, used = _two_arguments(items, 1)
        above, below = _plain(top), _plain(bottom)
        return (_quotient(above, below) if above is not None and below is not None else None), used
    if items[0] == "." and len(items) > 1:  # .5 with a bar over the 5
        value, used = _repeating(("0", *items)) or (None, 1)
        return value, used - 1
    first, second, fourth = number_at(items, 0), number_at(items, 1), number_at(items, 3)
    if not first:
        return None, 0
    value = _value(first)
    if value is None:
        return None, 0
    repeating = _repeating(items)
    if repeating is not None:
        return repeating
    if first.isdecimal() and items[1:2] == (r"\frac",):  # 2 1/2
        top, bottom, used = _two_arguments(items, 2)
        over, under = _whole(Group(top)), _whole(Group(bottom))
        return (value + Fraction(over, under) if over is not None and under else None), used
    if first.isdecimal() and second and items[2:3] == ("/",) and fourth:
        if second.isdecimal() and fourth.isdecimal() and int(second) < int(fourth):
            return value + Fraction(int(second), int(fourth)), 4
        return None, 0
    return value, 1


def _quotient(above: Fraction, below: Fraction) -> Fraction:
    if not below:
        raise NoValue("a division by zero")
    return above / below


def _repeating(items: Items) -> tuple[Fraction | None, int] | None:
    """0.1 and then 6 under a bar or dots, or in brackets. None: no such thing follows."""
    first, dotted = number_at(items, 0), items[1:2] == (".",)
    at = 2 if dotted else 1
    if not (dotted or "." in first) or at >= len(items):
        return None
    if items[at] in (r"\overline", r"\bar") or items[at] == r"\dot":
        period, used = spelled(items[at + 1 : at + 2]), at + 2
        while items[at] == r"\dot" and used < len(items) and (number_at(items, used) or items[used] == r"\dot"):
            more = number_at(items, used) or spelled(items[used + 1 : used + 2])
            period, used = period + more, used + (1 if number_at(items, used) else 2)
            if items[used - 2] == r"\dot":
                break
    elif items[at] == "(" and number_at(items, at + 1) and items[at + 2 : at + 3] == (")",):
        period, used = number_at(items, at + 1), at + 3
    else:
        return None
    if not period.isdecimal() or len(period) > MAX_DIGITS or "e" in first.lower():
        raise Unreadable("a repeating decimal")
    places = len(first.partition(".")[2])
    start = _value(first) or Fraction(0)
    return start + Fraction(int(period), (10 ** len(period) - 1) * 10**places), used


def _two_arguments(items: Items, at: int) -> tuple[Items, Items, int]:
    """Of a fraction, braces or not; the index behind them. 12 are two digits."""
    first, at = _one_argument(items, at)
    if len(first) == 1 and not isinstance(items[at - 1], Group) and len(str(first[0])) == 2:
        token = str(first[0])
        if token.isalnum():
            return (token[0],), (token[1],), at
    second, at = _one_argument(items, at)
    if not isinstance(items[at - 1], Group) and str(second[0]).isalnum() and len(str(second[0])) > 1:
        raise Unreadable("which digits the fraction takes")
    return first, second, at


def _one_argument(items: Items, at: int) -> tuple[Items, int]:
    if at >= len(items) or isinstance(items[at], Table):
        raise Unreadable("an argument is missing")
    item = items[at]
    if isinstance(item, Group):
        return tuple(item), at + 1
    if item in (r"\sqrt", r"\surd", r"\frac"):
        raise Unreadable("an argument without braces")
    return (item,), at + 1


class _Writer:
    """One expression; `last` is what stands before: "" (nothing), "sign", "number", "name", "closed"."""

    def __init__(self, items: Items) -> None:
        self.items, self.at, self.last = items, 0, ""
        self.out: list[str] = []
        self.divided = False
        self.bars = 0

    def write(self) -> str:
        if not self.items:
            raise Unreadable("an empty expression")
        while self.at < len(self.items):
            self._step(self.items[self.at])
        if self.last in ("", "sign"):
            raise Unreadable("the expression ends too early")
        if self.bars % 2:
            raise Unreadable("a bar is not closed")
        return " ".join(self.out)

    def _put(self, text: str, last: str) -> None:
        self.out.append(text)
        self.last = last
        self.at += 1

    def _factor(self, text: str, last: str) -> None:
        """Something that may stand beside a factor without a sign."""
        if self.last == "number" and last == "number":
            raise Unreadable("two numbers in a row")
        if self.divided and self.last in ("number", "name", "closed"):
            raise Unreadable("what the slash divides by")
        if self.last in ("number", "closed") and last in ("number", "closed"):
            self.out.append(r"\cdot ")
        elif self.last == "name" and last == "number":
            raise Unreadable("a number after a name")
        self._put(text, last)

    def _step(self, item: object) -> None:
        if isinstance(item, Table):
            raise Unreadable("a table in an expression")
        if isinstance(item, Group):
            raise Unreadable("braces")
        if number_at(self.items, self.at) or item == ".":
            self._number()
        elif item in ("^", "_"):
            self._script(str(item))
        elif item in _SIGNS:
            self._sign(str(item))
        elif item in ("(", "[", r"\lfloor", r"\lceil"):
            self._brackets(str(item))
        elif item in (r"\frac", r"\binom"):
            top, bottom, end = _two_arguments(self.items, self.at + 1)
            above, below = _Writer(top).write(), leaf(bottom)
            if item == r"\frac" and below.exact == 0:
                raise NoValue("a division by zero")
            self._factor(f"{item}{{{above}}}{{{below.latex}}}", "closed")
            self.at = end
        elif item in (r"\sqrt", r"\surd"):
            self._root()
        elif item in FUNCTIONS:
            self._factor(f"{item} ", "function")
        else:
            self._name(item)

    def _number(self) -> None:
        value, used = _literal(self.items[self.at : self.at + MAX_LITERAL])
        if value is None:
            raise Unreadable("a number")
        end = self.at + used
        fraction = self.items[end : end + 1] == ("/",) and number_at(self.items, end + 1)
        if fraction and not self.divided:
            below, more = _literal(self.items[end + 1 : end + MAX_LITERAL])
            following = self.items[end + 1 + more : end + 2 + more]
            if below is not None and following not in (("^",), ("!",), ("_",)):
                value, end = _quotient(value, below), end + 1 + more
        if self.items[end : end + 1] == (r"\%",):
            value, end = value / 100, end + 1
        if self.divided and not value and self.items[end : end + 1] not in (("!",), ("^",)):
            raise NoValue("a division by zero")
        text = Leaf.of(value).latex
        if self.items[end : end + 2] == ("^", r"\circ"):
            text, end = rf"(\frac{{{value.numerator}\pi}}{{{value.denominator * 180}}})", end + 2
        self._factor(text, "number")
        self.at = end

    def _sign(self, sign: str) -> None:
        if sign == "|":
            self.bars += 1
            self._put("|", "sign" if self.bars % 2 else "closed")
            return
        if sign == "!":
            if self.last not in ("number", "name", "closed"):
                raise Unreadable("a factorial of nothing")
            self._put("!", "closed")
            return
        if sign not in "+-" and self.last in ("", "sign", "function"):
            raise Unreadable("an operator without a left side")
        self.divided = sign == "/"
        self._put(_SIGNS[sign], "sign")

    def _brackets(self, opening: str) -> None:
        end = closing_bracket(self.items, self.at)
        if self.items[end] != CLOSING[opening]:
            raise Unreadable("brackets do not match")
        inner = self.items[self.at + 1 : end]
        left, right = ("(", ")") if opening == "[" else (opening, CLOSING[opening])
        if self.last == "function" and "," in inner:
            text = ",".join(_Writer(part).write() for part in split(inner, lambda item: item == ",")[0])
        else:
            text = _Writer(inner).write()
        if self.last == "name" and str(self.items[self.at - 1]) not in _APPLIED:
            if self.divided:
                raise Unreadable("what the slash divides by")
            self.out.append(r"\cdot ")
        self._factor(f"{left}{text}{right}", "closed")
        self.at = end + 1

    def _script(self, script: str) -> None:
        argument = self.items[self.at + 1 : self.at + 2]
        used = 2
        start = self.at + 1
        if script == "^" and argument in (("-",), ("(",)):  # 2^-1 and 2^(n+1), as programs write them
            signed = start + (argument == ("-",))
            end = closing_bracket(self.items, signed) if self.items[signed : signed + 1] == ("(",) else signed
            argument, used = (Group(self.items[start : end + 1]),), end + 1 - self.at
        if not argument or isinstance(argument[0], Table):
            raise Unreadable("an exponent is missing")
        inner = argument[0] if isinstance(argument[0], Group) else Group(argument)
        if script == "_":
            self._subscript(inner)
        elif self.last in ("number", "name", "closed", "function"):
            self.out.append(f"^{{{_Writer(tuple(inner)).write()}}}")
        else:
            raise Unreadable("an exponent of nothing")
        if script == "^" and self.items[self.at + used : self.at + used + 1] == ("^",):
            raise Unreadable("a tower without braces")
        self.last = self.last if self.last == "function" else "closed" if script == "^" else "name"
        self.at += used

    def _subscript(self, inner: Group) -> None:
        if self.last == "function" and self.out[-1].startswith(r"\log"):
            self.out[-1] = rf"\log_{{{_Writer(tuple(inner)).write()}}} "
            self.last = "function"
            return
        text = "".join(map(str, inner))
        if self.last != "name" or not text.replace("+", "").replace("-", "").isalnum():
            raise Unreadable("a subscript")
        self.out[-1] = f"{self.out[-1].strip()}_{{{text}}}"

    def _root(self) -> None:
        at, degree = self.at + 1, ""
        if self.items[at : at + 1] == ("[",):
            end = closing_bracket(self.items, at)
            degree, at = f"[{_Writer(self.items[at + 1 : end]).write()}]", end + 1
        if self.items[at : at + 1] == ("(",):
            end = closing_bracket(self.items, at)
            inner, at = self.items[at + 1 : end], end + 1
        else:
            inner, at = _one_argument(self.items, at)
            bare = "" if isinstance(self.items[at - 1], Group) else str(self.items[at - 1])
            if len(bare) > 1 and (bare.isalpha() or bare.isdecimal() and self.items[self.at] == r"\sqrt"):
                raise Unreadable("how far the root goes")
        sign = "-" if inner[:1] == ("-",) and _is_odd(degree) and not {"+", "-"} & set(inner[1:]) else ""
        radical = rf"\sqrt{degree}{{{_Writer(tuple(inner[1:] if sign else inner)).write()}}}"
        self._factor(f"(-{radical})" if sign else radical, "closed")
        self.at = at

    def _name(self, item: object) -> None:
        text = str(item)
        if item in ACCENTS and self.at + 1 < len(self.items):
            (inner, end) = _one_argument(self.items, self.at + 1)
            letters = "".join(map(str, inner))
            if not letters.isalpha():
                raise Unreadable(f"{item} of something else than a name")
            self._factor(rf"\text{{{text[1:]}{letters}}}", "name")
            self.at = end
        elif item in NAMES or item in _CONSTANTS:
            self._factor(_RENAMED.get(text, f"{text} "), "name")
        elif isinstance(item, Words) and len(text) > 1:
            raise Unreadable(f"a word in an expression: {text}")
        elif text.isalpha() and text.isascii():
            for letter in text[:-1]:
                self._factor(_RENAMED.get(letter, letter), "name")
                self.at -= 1
            self._factor(_RENAMED.get(text[-1], text[-1]), "name")
        else:
            raise Unreadable(f"no mathematics: {text}")


def _is_odd(degree: str) -> bool:
    """The odd root of a negative number is negative, not complex as the algebra has it."""
    return degree[1:-1].isdecimal() and int(degree[1:-1]) % 2 == 1
