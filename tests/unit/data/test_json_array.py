from __future__ import annotations

import io
import json
from typing import Any

import pytest

from sdpo.data.json_array import array_elements

VALUES: list[Any] = [
    {"a": "x" * 50, "b": [1, -2.5e-10, True, None, {"c": "]"}]},
    'a \\ " , ] } \u00e9 \U0001f600',
    12345678901234567890123,
    -0.5,
    [],
    {},
    None,
    float("inf"),
    [[["deep"]]],
]


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 50, 10_000])
@pytest.mark.parametrize("indent", [None, 3])
def test_elements_are_what_json_loads_gives_wherever_the_text_is_cut(chunk: int, indent: int | None) -> None:
    for ascii_only in (True, False):
        text = json.dumps(VALUES, indent=indent, ensure_ascii=ascii_only)
        assert list(array_elements(io.StringIO(text), chunk)) == json.loads(text)


@pytest.mark.parametrize("text", ["[]", " [ ] ", "[\n]\n"])
def test_an_empty_array_has_no_elements(text: str) -> None:
    assert list(array_elements(io.StringIO(text))) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1}, {"a": ', "element 2: Expecting value"),
        ('[{"a": 1}, {"a"', "element 2: "),
        ('[{"a": 1}', r"',' or '\]' expected after element 1, got '' \(end of file\)"),
        ('[{"a": 1} {"a": 2}]', r"',' or '\]' expected after element 1, got '\{'"),
        ('[{"a": 1}, ]', "element 2: Expecting value"),
        ('[{"a": oops}]', "element 1: Expecting value"),
        ('["never closed', "element 1: Unterminated string"),
        ("[1] 2", "'2' after the end of the array"),
        ('{"a": 1}', r"'\[' expected"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 5, 10_000])
def test_a_fault_is_named_by_its_element(text: str, message: str, chunk: int) -> None:
    with pytest.raises(ValueError, match=message):
        list(array_elements(io.StringIO(text), chunk))


def test_a_fault_early_in_a_long_file_is_found_without_reading_to_its_end() -> None:
    file = io.StringIO('[{"a": oops},' + " " * 10_000_000)
    with pytest.raises(ValueError, match="element 1"):
        list(array_elements(file, 1000))
    assert file.tell() < 10_000
