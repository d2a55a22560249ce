"""exp, log and the order of float32 numbers, for loops that Numba compiles to vector instructions."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

INLINE = {"inline": "always", "fastmath": True}

F, INT = np.float32, np.int32
ZERO, HALF, ONE, TWO = F(0.0), F(0.5), F(1.0), F(2.0)
TINY = F(1.2e-38)  # the smallest normal number
LOWEST = F(-87.0)  # below, exp is 0
LOG2_E, LN_2 = F(1.0 / math.log(2.0)), F(math.log(2.0))
LN_2_HIGH, LN_2_LOW = F(0.693359375), F(math.log(2.0) - 0.693359375)  # the first times a small whole number is exact
E2, E3, E4, E5, E6, E7 = (F(1.0 / math.factorial(n)) for n in range(2, 8))
L3, L5, L7, L9 = (F(1.0 / n) for n in (3, 5, 7, 9))
MANTISSA_BITS, EXPONENT_BIAS, ROOT_HALF = INT(23), INT(127), INT(0x3F3504F3)  # the last: sqrt(1/2) as an integer
SIGN_BIT, MAGNITUDE, INFINITY = INT(31), INT(0x7FFFFFFF), INT(0x7F800000)


@njit(**INLINE)
def exp(x):
    """2 ** n * e ** r with r at most ln 2 / 2 from 0, and its series; 0 below `LOWEST`. Relative error 3e-7."""
    inside = max(x, LOWEST)
    n = np.floor(inside * LOG2_E + HALF)
    r = (inside - n * LN_2_HIGH) - n * LN_2_LOW
    series = ((((((E7 * r + E6) * r + E5) * r + E4) * r + E3) * r + E2) * r + ONE) * r + ONE
    power = INT((INT(n) + EXPONENT_BIAS) << MANTISSA_BITS)
    return series * power.view(F) if x >= LOWEST else ZERO


@njit(**INLINE)
def log(x):
    """log(2 ** n * m) with m near 1, as 2 artanh((m - 1) / (m + 1)). Error 1e-7, relative or absolute. x is normal."""
    bits = F(x).view(INT)
    n = INT(INT(bits - ROOT_HALF) >> MANTISSA_BITS)
    over = INT(bits - INT(n << MANTISSA_BITS)).view(F) - ONE
    s = over / (TWO + over)
    square = s * s
    return TWO * s * ((((L9 * square + L7) * square + L5) * square + L3) * square + ONE) + F(n) * LN_2


@njit(**INLINE)
def ordered(x):
    """An integer that compares as x does. NaN, of either sign, is the largest."""
    bits = F(x).view(INT)
    key = INT(bits ^ INT(INT(bits >> SIGN_BIT) & MAGNITUDE))
    return MAGNITUDE if INT(bits & MAGNITUDE) > INFINITY else key


@njit(**INLINE)
def number(key):
    """Whose `ordered` is `key`."""
    return F(INT(key ^ INT(INT(key >> SIGN_BIT) & MAGNITUDE)).view(F))
