"""Ground truths that no reader can take."""

from __future__ import annotations

import pytest

from sdpo.errors import DataError
from sdpo.grading.code_tests import read_tests
from sdpo.grading.tool_calls import read_gold

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "truth",
    [DEEP, {"cases": DEEP}, {"fn_name": "f", "cases": [{"args": DEEP, "expected": "1"}]}],
    ids=["tests", "cases", "arguments"],
)
def test_json_nested_beyond_any_reader_is_an_error_of_the_data(truth):
    with pytest.raises(DataError, match="tests"):
        read_tests(truth)


def test_tool_calls_nested_beyond_any_reader_cannot_be_read():
    assert read_gold(DEEP) is None


@pytest.mark.parametrize("code", ["return 5\nassert f(1)", "await g()\nassert f()", "nonlocal x\nassert f()", "break"])
@pytest.mark.parametrize("field", ["code", "hidden_code"])
def test_tests_that_parse_and_do_not_compile_are_found_when_the_row_is_read(code, field):
    with pytest.raises(DataError, match=f"tests.{field}"):
        read_tests({"type": "assert", "code": "assert f(1)", field: code})
