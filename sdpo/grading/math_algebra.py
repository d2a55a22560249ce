"""Expressions in the computer algebra: equal only when their difference vanishes, at every number of digits tried."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

from .math_spelling import Unreadable

DIGITS = 400  # to which a difference is evaluated before it counts as zero
_READING = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
_POSITIVE = ((7, 3), (11, 5), (5, 4), (17, 6), (23, 8), (13, 9), (29, 11))
_PLACES = (  # where expressions are compared: the n-th symbol gets the n-th value
    [sympy.Rational(*pair) for pair in _POSITIVE],
    [sympy.Rational(*pair) * (-1) ** n for n, pair in enumerate(_POSITIVE, 1)],
    [sympy.Rational(b, 2 * a) for a, b in _POSITIVE],
    [sympy.Integer(n) for n in (3, 2, 5, 4, 7, 6, 8)],
    [sympy.Integer(n) for n in (4, 7, 6, 9, 3, 5, 2)],
)
_FAR = [sympy.Rational(5009 + 1000 * n, 7) * (-1) ** n for n in range(len(_POSITIVE))]
_BENT = (sympy.Abs, sympy.Max, sympy.Min, sympy.floor, sympy.ceiling)  # of one form near zero, of another far away
_ENOUGH = 2  # places that tell something


@lru_cache(maxsize=64)
def expression(latex: str) -> Any:
    """Raises Unreadable."""
    try:
        read = latex2sympy(latex, is_real=True, normalization_config=None, conversion_config=_READING)
    except Exception as error:  # its grammar and its conversion raise whatever they come upon
        raise Unreadable(str(error)) from None
    if not isinstance(read, sympy.Expr):
        raise Unreadable("no expression")
    return read.subs({symbol: sympy.I for symbol in read.free_symbols if symbol.name == "imaginary"}).doit()


class Algebra:
    def has_value(self, latex: str) -> bool:
        return not expression(latex).has(sympy.zoo, sympy.nan)

    def equal(self, one: str, other: str) -> bool:
        first, second = expression(one), expression(other)
        if not (self.has_value(one) and self.has_value(other)):
            return False
        if first == second:
            return True
        if first.has(sympy.oo) or second.has(sympy.oo):
            return False
        return self._vanishes(first - second, (first, second))

    def proportional(self, one: str, other: str, same_sign: bool) -> bool:
        """Is one the other times a constant, which is positive with same_sign?"""
        first, second = expression(one), expression(other)
        symbols = sorted(first.free_symbols | second.free_symbols, key=str)
        if not symbols or len(symbols) > len(_POSITIVE):
            return False
        place = dict(zip(symbols, _PLACES[0], strict=False))
        ours, theirs = first.subs(place), second.subs(place)
        if _is_zero(ours) is not False or _is_zero(theirs) is not False:
            return False
        if same_sign and not (ours / theirs).is_positive:
            return False
        return self._vanishes(first * theirs - second * ours, (first, second))

    def same_progression(self, one: str, other: str) -> bool:
        """Do two expressions in an index take the same values when it runs over the whole numbers?"""
        first, second = expression(one), expression(other)
        index = next((symbol for symbol in first.free_symbols if symbol.name == "index"), None)
        steps = [sympy.expand(value.diff(index)) for value in (first, second)] if index is not None else []
        if not steps or steps[0].has(index) or sympy.simplify(steps[0] ** 2 - steps[1] ** 2) != 0 or steps[0] == 0:
            return False
        return bool(sympy.simplify((first - second).subs(index, 0) / steps[0]).is_Integer)

    def within(self, latex: str, decimal: Fraction, distance: Fraction) -> bool:
        value = expression(latex)
        if value.free_symbols:
            return False
        difference = sympy.Abs(value - sympy.Rational(decimal.numerator, decimal.denominator)).evalf(50)
        return bool(difference.is_number and difference <= sympy.Rational(distance.numerator, distance.denominator))

    def _vanishes(self, difference: Any, sides: tuple[Any, Any]) -> bool:
        symbols = sorted(sides[0].free_symbols | sides[1].free_symbols, key=str)
        if not symbols:
            return _is_zero(difference) is True
        if len(symbols) > len(_POSITIVE):
            return sympy.expand(difference) == 0
        told = 0
        roots = any(power.exp.is_Rational and power.exp.q > 1 for power in difference.atoms(sympy.Pow))
        bent = roots or difference.has(*_BENT)
        for values in (*_PLACES, _FAR, [-value for value in _FAR])[: None if bent else len(_PLACES)]:
            place = dict(zip(symbols, values, strict=False))
            if not all(_is_defined(side, place) for side in sides):
                continue
            zero = _is_zero(difference.subs(place))
            if zero is False:
                return False
            told += zero is True
        return told >= _ENOUGH


def _is_defined(value: Any, place: dict[Any, Any]) -> bool:
    """Outside of its domain an expression in real numbers tells nothing: \\ln x at -2."""
    at = value.subs(place).evalf()
    return bool(at.is_number and at.is_finite is not False and (value.has(sympy.I) or not at.has(sympy.I)))


def _is_zero(number: Any) -> bool | None:
    """None: it has no value."""
    number = number.doit()
    if number.is_Rational:
        return bool(number == 0)
    if number.free_symbols or number.has(sympy.nan, sympy.zoo, sympy.oo):
        return None
    try:
        value = number.evalf(10, maxn=DIGITS, strict=True)
    except sympy.core.evalf.PrecisionExhausted:  # zero to all those digits, or a sine of something larger than they go
        return bool(abs(number.evalf(10, maxn=DIGITS)) < sympy.Rational(1, 10**DIGITS))
    return bool(value == 0) if value.is_number and value.is_finite is not False else None
