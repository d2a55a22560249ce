"""Integers of thousands of digits, in rows, in programs and in verdicts."""

from __future__ import annotations

import json

import pytest

from sdpo.cli.grade import read_line
from sdpo.data.files import _parse_line
from sdpo.grading.code_tests import read_tests
from sdpo.grading.compare import values_equal
from sdpo.grading.source_grader import fingerprint
from sdpo.records import GradeStatus, Prompt
from sdpo.sandbox.limits import Limits

LIMITS = Limits(cpu_s=2.0)
DIGITS = 6_000
BIG = "1" + "0" * DIGITS
NEXT = BIG[:-1] + "1"
ROWS = {
    "values": {"type": "function", "name": "f", "cases": [{"args": [10**DIGITS], "expected": 10**DIGITS + 1}]},
    "nested": {"type": "function", "name": "f", "cases": [{"args": [10**DIGITS], "expected": 10**DIGITS + 1}] * 2},
    "JSON lines": {"type": "function", "name": "f", "cases": [{"args": BIG, "expected": NEXT}]},
    "JSON text": f'{{"type": "function", "name": "f", "cases": [{{"args": [{BIG}], "expected": {NEXT}}}]}}',
    "literals": {"type": "assert", "code": f"assert f({BIG}) == {NEXT}"},
    "powers": {"type": "assert", "code": f"assert f(10**{DIGITS}) == 10**{DIGITS} + 1"},
    "texts": {"type": "assert", "code": f"assert str(f(10**{DIGITS})) == '{NEXT}'\nassert f(int('{BIG}')) > 0"},
}


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("box", ["sandbox", "weakest_sandbox"])
def test_long_integers_are_arguments_and_answers(request, code_grader, row, box):
    code_grader = type(code_grader)(request.getfixturevalue(box), LIMITS, code_grader.options)
    tests = read_tests(ROWS[row])
    for source, status in (
        ("def f(x): return x + 1", GradeStatus.OK),
        ("def f(x): return int(str(x + 1))", GradeStatus.OK),
        ("def f(x): return x + 2", GradeStatus.WRONG),
        ("def f(x): return -x - 1", GradeStatus.WRONG),
    ):
        result = code_grader.grade_source(source, tests, LIMITS)
        assert (result.status, len(result.feedback) < 3000) == (status, True)


def test_long_integers_go_in_and_out_as_text(code_grader):
    tests = read_tests({"type": "stdin", "cases": [{"input": BIG, "output": NEXT}]})
    assert code_grader.grade_source("print(int(input()) + 1)", tests, LIMITS).status is GradeStatus.OK
    assert code_grader.grade_source("print(int(input()) + 2)", tests, LIMITS).status is GradeStatus.WRONG


def test_a_row_with_a_long_integer_is_loaded_and_told_apart():
    row = f'{{"id": 1, "kind": "code", "response": "", "tests": {ROWS["JSON text"]}}}'
    assert _parse_line(row, "here")["tests"]["cases"][0] == {"args": [10**DIGITS], "expected": 10**DIGITS + 1}
    assert read_line(row.encode(), 1)[0] == 1
    one, two = (Prompt("p", (), "code", {"expected": 10**DIGITS + i}) for i in range(2))
    assert fingerprint(one, "", False) != fingerprint(two, "", False) != fingerprint(two, "x", False)
    assert len(json.dumps(fingerprint(one, "", False).hex())) == 66


def test_long_integers_compare_exactly():
    assert values_equal(10**50_000, 10**50_000)
    assert not values_equal(10**50_000, 10**50_000 + 1)
    assert not values_equal(10**50_000, 1.5)
