from __future__ import annotations

import datetime
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sdpo.grading.compare import values_equal
from sdpo.grading.feedback import show
from sdpo.sandbox.inside.frames import FrameError, Opaque, decode, describe, encode, pack, unpack
from sdpo.sandbox.outcome import Fault


def travel(value):
    return decode(unpack(pack(encode(value))[4:]))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**200,
        -(2**64),
        1.5,
        math.inf,
        "",
        "h\u00e9\U0001f600",
        "\ud800",
        b"\x00\xff",
        bytearray(b"x"),
        1 + 2j,
        [],
        [1, [2, (3, None)]],
        (),
        (1, "a"),
        {1: 2, "a": [3], (1, 2): {4}},
        {1, 2},
        frozenset({"a"}),
        deque([1, 2]),
        Counter("aab"),
        OrderedDict(a=1),
        Decimal("1.10"),
        Fraction(1, 3),
        datetime.datetime(2020, 1, 2, 3, 4, 5),
        datetime.date(2020, 1, 2),
        datetime.time(3, 4),
        datetime.timedelta(days=1, microseconds=2),
    ],
    ids=repr,
)
def test_a_value_arrives_equal_and_of_the_same_built_in_type(value):
    result = travel(value)
    assert result == value
    assert type(result) is type(value)


def test_not_a_number_and_negative_zero_arrive():
    assert math.isnan(travel(math.nan))
    assert math.copysign(1, travel(-0.0)) == -1


class LoudString(str):
    def __eq__(self, other):
        return True

    def __str__(self):
        raise RuntimeError

    __hash__ = str.__hash__


class Colour(IntEnum):
    RED = 3


def test_a_subclass_arrives_as_its_plain_content():
    point = namedtuple("Point", "x y")(1, 2)
    for value, plain in ((LoudString("x"), "x"), (Colour.RED, 3), (point, (1, 2)), (defaultdict(int, a=1), {"a": 1})):
        result = travel(value)
        assert type(result) is type(plain)
        assert result == plain


def test_numpy_values_arrive_as_plain_numbers_and_lists():
    assert travel(np.int64(3)) == 3
    assert travel(np.array([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert travel([np.float64(0.5), np.bool_(True)]) == [0.5, True]


class Hostile:
    def __repr__(self):
        raise SystemExit

    def __eq__(self, other):
        return True


def test_a_foreign_object_arrives_as_something_equal_to_nothing():
    result = travel(Hostile())
    assert isinstance(result, Opaque)
    assert result != result
    assert result != Hostile.__name__


def test_a_cyclic_or_very_deep_value_arrives_cut_off():
    cycle: list = []
    cycle.append(cycle)
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    for value in (cycle, deep):
        assert "nested too deeply" in json.dumps(encode(value))


@pytest.mark.parametrize(
    "body",
    [
        {"i": "zz"},
        {"x": 1},
        {"i": "0x1", "t": []},
        {"t": 5},
        {"d": [[1]]},
        {"d": [[[], 1]]},
        {"F": ["0x1", "0x0"]},
        {"D": "one"},
        {"s": [[]]},
        {"dt": "yesterday"},
        {"b": "!!"},
        {"c": ["1"]},
        {"n": [1]},
        {"td": [10**20, 0, 0]},
    ],
    ids=str,
)
def test_a_body_that_no_encoder_sends_is_refused(body):
    with pytest.raises(FrameError):
        decode(body)


def test_frames_that_are_not_json_are_refused():
    for body in (b"", b"{", b"[" * 100_000, b"\xff\xfe", b"1" * 10_000):
        with pytest.raises(FrameError):
            unpack(body)


def test_keys_that_share_a_hash_are_refused_before_a_set_is_built():
    modulus = 2**61 - 1
    keys = [{"i": hex(i * modulus)} for i in range(1, 20_000)]
    for tag, items in (("s", keys), ("d", [[key, 1] for key in keys])):
        with pytest.raises(FrameError, match="colliding"):
            decode({tag: items})


@pytest.mark.parametrize("depth", [1, 900, 960, 980, 990])
def test_a_description_of_an_error_in_another_shape_is_empty_at_any_depth(depth):
    """str() of a list that deep would be a RecursionError of the grader."""
    nested: list = []
    for _ in range(depth):
        nested = [nested]
    fault = Fault.from_message({"type": nested, "message": nested, "frames": [[1, nested, nested]], "code": nested})
    assert (fault.type, fault.message, fault.frames, fault.code) == ("Error", "", ((1, "", ""),), "")


ODD = st.sampled_from(
    ["NaN", "sNaN", "-Infinity", "1E+999999999", "1e-999999999", "1.0", "0x10", "9" * 5000, "12:00", ""]
)
TAGS = st.sampled_from([*"ifobBcDFtszqdOCnx", "dt", "da", "ti", "td", "D2", "ref"])
SENT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | ODD,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TAGS, inner, min_size=1, max_size=1)
        | st.builds(lambda tag, item: {tag: [item]}, TAGS, inner)
        | st.builds(lambda tag, pairs: {tag: pairs}, TAGS, st.lists(st.tuples(inner, inner).map(list), max_size=3))
    ),
    max_leaves=12,
)
EXPECTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SENT, EXPECTED)
def test_whatever_a_program_sends_is_refused_or_can_be_compared_and_shown(sent, expected):
    try:
        value = decode(sent)
    except FrameError:
        return
    for wanted in (expected, 5, 1.5, 10**5000, None):
        assert values_equal(value, wanted) in (True, False)
        assert values_equal([value, {"a": value}], [wanted, {"a": wanted}]) in (True, False)
    assert isinstance(show(value), str) and isinstance(describe(value), str)
