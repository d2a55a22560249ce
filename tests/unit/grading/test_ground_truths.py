"""Ground truths that no reader can take."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sdpo.errors import DataError
from sdpo.grading.code_tests import FunctionCase, FunctionTests, StdinCase, StdinTests, read_tests
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


@pytest.mark.parametrize("name", ["f g", "f(", "1f", "", " f", "a..b", ".f", "f.", "class", "f\n", None, 3])
def test_a_function_row_whose_name_no_function_can_have_is_found_when_it_is_read(name):
    with pytest.raises(DataError, match="tests.name"):
        read_tests({"type": "function", "name": name, "cases": [{"args": [1], "expected": 1}]})


@pytest.mark.parametrize("name", ["f", "_f2", "Solution.f", "größe"])
def test_a_name_of_a_function_or_a_method_is_read(name):
    assert read_tests({"type": "function", "name": name, "cases": [{"args": [1], "expected": 1}]}).name == name


def test_what_the_compiler_thinks_of_tests_and_calls_of_others_is_not_printed():
    tests = "assert f(1) is 1\nassert (f(2), 'x')\nassert f('\\d')"
    code = f"""
from sdpo.grading.code_tests import FunctionCase, FunctionTests, StdinCase, StdinTests, read_tests
from sdpo.sandbox.assert_code import prepare
from sdpo.grading.tool_calls import extract_calls
prepare(read_tests({{"type": "assert", "code": {tests!r}}}).code, None)
extract_calls("[f(a='\\\\d')]")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"inputs": ["1\n", "2\n"], "outputs": ["1", "4"]}, StdinTests((StdinCase("1\n", "1"), StdinCase("2\n", "4")))),
        ({"inputs": [["3", "1 2 3"]], "outputs": [["6"]]}, StdinTests((StdinCase("3\n1 2 3", "6"),))),
        (
            {"fn_name": "add", "inputs": ["1\n[2]"], "outputs": ["[3]"]},
            FunctionTests("add", (FunctionCase((1, [2]), [3]),)),
        ),
        (
            {"fn_name": "add", "inputs": [[1, 2]], "outputs": [[3]]},
            FunctionTests("add", (FunctionCase((1, 2), 3),)),
        ),
    ],
)
def test_lists_of_inputs_and_outputs_are_tests_also_as_json_text(given, read):
    assert read_tests(given) == read_tests(json.dumps(given)) == read


@pytest.mark.parametrize("given", [{"inputs": ["1"], "outputs": []}, {"inputs": "1", "outputs": "1"}])
def test_lists_that_do_not_match_are_found_when_the_row_is_read(given):
    with pytest.raises(DataError, match="tests.inputs"):
        read_tests(given)
