from __future__ import annotations

from collections import Counter, deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpo.grading.compare import DECIMAL, NUMBER, outputs_equal, values_equal
from sdpo.sandbox.inside.frames import Opaque


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("1 2 \n3\n", "1 2\n3"),
        ("1 2\r\n3", "1 2\n3"),
        ("", ""),
        ("\n\n", ""),
        ("-", "-"),
        ("0.3333333333333333", "0.333333333"),
        ("x 1.0000000001 y", "x 1.0 y"),
        ("2", "2.0"),
        ("1e-7", "0.0000001"),
        ("2", "2."),
        ("+.5", "0.5"),
        ("1" * 60_000 + ".5", "1" * 60_000 + ".5"),
        ("3." + "1" * 60_000, "3." + "1" * 59_999),
        ("50000000000000000", "50000000000000000"),
    ],
)
def test_outputs_that_mean_the_same_are_equal(got, expected):
    assert outputs_equal(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ("50000000000000001", "50000000000000000"),
        ("1000009", "1000000"),
        ("nan", "1.5"),
        ("inf", "1.5"),
        ("2.0", "2"),
        ("1\n2\n3", "1 2 3"),
        ("", "-"),
        ("a", "A"),
        (" 1", "1"),
        ("1  2", "1 2"),
        ("1.5 extra", "1.5"),
        ("1.6", "1.5"),
        ("1_5.0", "15.0"),
        ("1" * 60_000 + "x", "0.5"),
        ("1" * 60_000, "0.5"),
        ("1e999", "1e400"),
        ("-1e999", "-1e400"),
        ("\u0661.5", "1.5"),
        ("1.5e", "1.5"),
        ("1.5.", "1.5"),
        ("1\n", "1\n\n2"),
    ],
)
def test_outputs_that_differ_are_not_equal(got, expected):
    assert not outputs_equal(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1, 2], (1, 2)),
        ((1, [2]), [1, (2,)]),
        (2.0, 2),
        (2, 2.0),
        (0.1 + 0.2, 0.3),
        ({1: 2}, {"1": 2}),
        ({"a": (1,)}, {"a": [1]}),
        ({1, 2}, {2, 1}),
        (deque([1]), [1]),
        (Decimal("1.0"), 1),
        (Fraction(1, 2), Fraction(2, 4)),
        (2**200, 2**200),
        (None, None),
        (Counter("a"), {"a": 1}),
        (Decimal("0.5"), 0.5),
        (float("inf"), float("inf")),
    ],
)
def test_values_that_mean_the_same_are_equal(got, expected):
    assert values_equal(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (True, 1),
        (1, True),
        (0, False),
        (None, 0),
        ("1", 1),
        (1, "1"),
        ([1], 1),
        ([1, 2], [1]),
        ({"1": 2, 1: 2}, {"1": 2}),
        (2**53 + 1, 2**53),
        (0.3, 1),
        (float("nan"), 1.0),
        (Opaque("x"), "x"),
        (Opaque("x"), None),
        ("a", b"a"),
        ({1}, [1]),
        (Decimal("1e999999999"), 5),
        (Decimal("nan"), 5),
        (10**400, 1.5),
        (10**400, float("inf")),
        (Decimal("sNaN"), 5),
        (Decimal("sNaN"), 5.0),
    ],
)
def test_values_that_differ_are_not_equal(got, expected):
    assert not values_equal(got, expected)


@settings(max_examples=500, deadline=None)
@given(st.text("019.eE+-_x", max_size=9))
def test_a_number_is_what_float_reads_without_its_liberties(token):
    try:
        float(token)
        readable = "_" not in token
    except ValueError:
        readable = False
    assert bool(NUMBER.fullmatch(token)) == readable
    assert bool(DECIMAL.fullmatch(token)) == (readable and not token.lstrip("+-").isdigit())
