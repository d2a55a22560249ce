"""Integers of thousands of digits, as JSON and as Python."""

from __future__ import annotations

import random

import pytest

from sdpo.data.long_integers import in_pieces, read_integer, read_json

DIGITS = 6_000
DRAW = random.Random(5)
TEXTS = [str(DRAW.randint(1, 9)) + "0" * zeros + "7" for zeros in (0, 3998, 3999, 4000, 4299, 7998, 20_000)]


def value_of(text: str) -> int:
    """Without int(), which refuses."""
    return int(text[0]) * 10 ** (len(text) - 1) + 7


@pytest.mark.parametrize("text", TEXTS, ids=len)
def test_an_integer_of_any_length_is_read_exactly(text):
    value = value_of(text)
    assert read_integer(text) == value == -read_integer("-" + text)
    assert read_json(f'[{text}, {{"a": -{text}}}, 1.5, "{text}"]') == [value, {"a": -value}, 1.5, text]


@pytest.mark.parametrize("text", TEXTS, ids=len)
def test_a_literal_in_pieces_means_the_same(text):
    code = f"x = -{text}**1 + {text}\ny = '{text}' # {text}\nz = [0x{text}, {text[:3]}_{text[3:]}, {text}.5]"
    if len(text) > 3:
        names: dict = {}
        exec(in_pieces(code.replace(f", {text}.5", "")), names)
        assert (names["x"], names["y"], names["z"]) == (0, text, [int(text, 16), value_of(text)])
        assert f"{text}.5" in in_pieces(code)


def test_what_is_no_json_is_none_whatever_its_integers():
    for text in ("[" + "1" * DIGITS, "1" * DIGITS + "x", "[1,", ""):
        with pytest.raises(ValueError):
            read_json(text)
