"""Tests and solution in two processes: honest solutions of every shape pass, and none decides a comparison."""

from __future__ import annotations

import pytest
from program_files import read_programs

from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits

LIMITS = Limits(cpu_s=1.0, memory_mb=256)


def run(sandbox, source, tests, entry=None):
    return sandbox.run_assert(source, tests, entry, LIMITS)


def passes(outcome):
    return bool(outcome.cases) and all(case.status is GradeStatus.OK for case in outcome.cases)


HONEST = {
    name: (entry["solution"], entry["tests"], entry.get("entry point", "").strip() or None)
    for name, entry in read_programs("judged.txt").items()
}
FORGERIES = {name: entry["solution"] for name, entry in read_programs("forgeries.txt").items()}
DECIDED_BY_THE_SOLUTION = ("named tuple", "enum members")


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_solution_passes(sandbox, name):
    outcome = run(sandbox, *HONEST[name])
    assert passes(outcome), [case for case in outcome.cases if case.status is not GradeStatus.OK]


@pytest.mark.parametrize("name", [name for name in HONEST if name not in DECIDED_BY_THE_SOLUTION])
def test_a_comparison_with_plain_values_is_not_weak(sandbox, name):
    assert not run(sandbox, *HONEST[name]).weak


@pytest.mark.parametrize("builtin", ["all", "len", "isinstance", "sorted", "abs", "print", "AssertionError", "set"])
def test_a_solution_cannot_replace_a_built_in_of_the_tests(sandbox, builtin):
    source = f"def {builtin}(*a, **k): return True\ndef f(x): return [0]"
    tests = "assert all(x == 5 for x in f(1))\nassert len(f(1)) == 5\nassert sorted(f(1)) == [5]\n"
    tests += "assert isinstance(f(1), str)"
    assert not passes(run(sandbox, source, tests))
    assert not passes(run(sandbox, source, "from solution import *\n" + tests))
    assert not passes(run(sandbox, source, f"from solution import {builtin}, f\n" + tests))


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("style", ["assert", "pytest", "unittest", "check"])
def test_a_forgery_does_not_pass(sandbox, name, style):
    value = "EXP-1f0e9c"
    tests = {
        "assert": f"assert f(1) == {value!r}",
        "pytest": f"from solution import f\ndef test():\n    assert f(1) == {value!r}",
        "unittest": "import unittest\nclass T(unittest.TestCase):\n"
        f"    def test(self):\n        self.assertEqual(f(1), {value!r})",
        "check": f"def check(candidate):\n    assert candidate(1) == {value!r}",
    }[style]
    outcome = run(sandbox, FORGERIES[name], tests, "f" if style == "check" else None)
    assert not passes(outcome)


def test_an_object_that_agrees_with_every_operator_is_marked_weak(sandbox):
    source = "class E:\n    def __lt__(s, o): return True\n    __gt__ = __le__ = __ge__ = __contains__ = __lt__\n"
    source += "def f(x): return E()"
    outcome = run(sandbox, source, "assert f(1) < 5")
    assert outcome.weak
    assert run(sandbox, source, "assert 3 in f(1)").weak


def test_two_objects_of_the_solution_compare_and_are_marked_weak(sandbox):
    source = "class P:\n    def __init__(s, x): s.x = x\n    def __eq__(s, o): return s.x == o.x"
    outcome = run(sandbox, source, "assert P(1) == P(1)\nassert P(1) != P(2)")
    assert passes(outcome)
    assert outcome.weak


def test_an_argument_cleared_during_its_own_comparison_is_marked_weak(sandbox):
    outcome = run(sandbox, "def f(a):\n    a.clear()\n    return []", "a = [3, 1]\nassert f(a) == sorted(a)")
    assert outcome.weak
    assert not run(sandbox, "def f(a):\n    a.clear()\n    return []", "assert f([3, 1]) == []").weak


@pytest.mark.parametrize("way", ["gi_frame", "gi_code", "f_globals", "_secret"])
def test_the_solution_cannot_look_behind_an_object_of_the_tests(sandbox, way):
    source = f"def f(g):\n    try:\n        return str(g.{way})\n    except AttributeError:\n        return 'refused'"
    tests = "def numbers():\n    yield 1\nclass T:\n    _secret = 5\n"
    assert passes(run(sandbox, source, tests + "assert f(numbers()) == 'refused'"))
    assert passes(run(sandbox, source, tests + "assert f(numbers) == 'refused'"))
    if way == "_secret":
        assert passes(run(sandbox, source, tests + "assert f(T()) == 'refused'"))


def test_a_stop_iteration_of_the_solution_does_not_end_the_loops_of_the_tests(sandbox):
    tests = "assert f is not None\nfor got, wanted in zip(map(f, [1, 2]), [1, 2]):\n    assert got == wanted"
    assert not passes(run(sandbox, "def f(x): raise StopIteration", tests))


def test_a_weak_pass_can_be_made_a_failure(sandbox):
    from sdpo.grading.code import CodeGrader
    from sdpo.grading.code_tests import read_tests
    from sdpo.grading.feedback import FeedbackOptions

    source = "class P:\n    def __eq__(s, o): return True\ndef f(): return P()"
    tests = read_tests({"type": "assert", "code": "from solution import P, f\nassert f() == P()"})
    lenient = CodeGrader(sandbox, LIMITS, FeedbackOptions()).grade_source(source, tests, LIMITS)
    strict = CodeGrader(sandbox, LIMITS, FeedbackOptions(), fail_weak=True).grade_source(source, tests, LIMITS)
    assert (lenient.status, strict.status) == (GradeStatus.OK, GradeStatus.WRONG)
    assert lenient.flags == strict.flags == ("integrity: weak",)


SPY = """
LOG = []
class Spy:
    def __eq__(self, other):
        LOG.append(other)
        return True
    def __ne__(self, other):
        return not self == other
    def __getattr__(self, name):
        return lambda *args, **kwargs: (LOG.extend(args), Spy())[1]
def f(x):
    return LOG[0] if LOG else Spy()
def log():
    return LOG
"""


def test_the_expected_value_is_never_sent_to_the_solution(sandbox):
    outcome = run(sandbox, SPY, "from solution import f, log\nassert f(1) != 'EXP-1'\nassert log() == []")
    assert passes(outcome)


def test_a_failed_assert_reports_the_statement_and_both_sides(sandbox):
    (case,) = run(sandbox, "def f(a, b): return a - b", "assert f(1, 2) == 3").cases
    assert (case.statement, case.left, case.right) == ("assert f(1, 2) == 3", "-1", "3")


def test_asserts_after_a_failed_one_still_count(sandbox):
    outcome = run(sandbox, "def f(x): return abs(x)", "assert f(-1) == -1\nassert f(2) == 2\nassert f(3) == 3")
    assert sorted(case.status for case in outcome.cases) == ["ok", "ok", "wrong"]


def test_an_assert_that_the_following_code_relies_on_stops(sandbox):
    tests = "def test():\n    for i in range(1000):\n        assert f(i) == 1\n"
    tests += "        if i > 3:\n            raise RuntimeError('went on')"
    outcome = run(sandbox, "def f(x): return 0", tests)
    assert [case.status for case in outcome.cases] == [GradeStatus.WRONG]


def test_an_error_of_the_solution_comes_with_its_own_frames(sandbox):
    (case,) = run(sandbox, "def f(x):\n    return g(x)\ndef g(x):\n    return 1 / x", "assert f(0) == 1").cases
    assert case.status is GradeStatus.RUNTIME_ERROR
    assert case.fault.type == "ZeroDivisionError"
    assert [frame[:2] for frame in case.fault.frames] == [(2, "f"), (4, "g")]


def test_a_solution_that_does_not_load_says_why(sandbox):
    (case,) = run(sandbox, "import nothing_like_this", "assert f(0) == 1").cases
    assert case.fault.type == "ModuleNotFoundError"


def test_a_solution_without_the_tested_function_says_so(sandbox):
    (case,) = run(sandbox, "def g(x): return 1", "def check(candidate):\n    assert candidate(0) == 1", "f").cases
    assert case.detail == "the solution defines no f"


@pytest.mark.parametrize("source", ["def f(x):\n    while True: pass", "import time\ndef f(x): time.sleep(100)"])
def test_a_solution_that_hangs_is_ended(sandbox, source):
    outcome = sandbox.run_assert(source, "assert f(0) == 1", None, Limits(cpu_s=0.3))
    assert [case.status for case in outcome.cases] == [GradeStatus.TIMEOUT]


@pytest.mark.parametrize(
    "tests",
    [
        "import no_such_package\nassert f() == 1",
        "def test(tmp_path):\n    assert f() == 1",
        "def test():\n    import no_such_package\n    assert f() == 1",
    ],
)
def test_tests_that_need_what_is_not_there_are_a_fault_of_the_row(code_grader, tests):
    from sdpo.grading.code_tests import read_tests

    grade = code_grader.grade_source("def f(): return 1", read_tests({"type": "assert", "code": tests}), LIMITS)
    assert (grade.status, grade.reward) == (GradeStatus.INVALID_GOLD, None)
    imports = "def f():\n    import no_such_package"
    asserts = read_tests({"type": "assert", "code": "assert f() == 1"})
    assert code_grader.grade_source(imports, asserts, LIMITS).status is GradeStatus.RUNTIME_ERROR


@pytest.mark.parametrize("code", ["x = 1", "# nothing", "print(f())", "def check(candidate):\n    candidate()"])
def test_tests_that_can_turn_nothing_down_are_no_tests(code):
    from sdpo.grading.code_tests import read_tests

    assert read_tests({"type": "assert", "code": code, "entry_point": "f"}) is None


def test_tests_that_come_to_no_check_are_no_pass(code_grader):
    from sdpo.grading.code_tests import read_tests

    tests = read_tests({"type": "assert", "code": "if False:\n    assert False"})
    assert code_grader.grade_source("def f(): return 1", tests, LIMITS).status is GradeStatus.NO_TESTS


SIDE = """
import sys
from fractions import Fraction
def side():
    frame = sys._getframe()
    while frame:
        found = frame.f_locals.get("self")
        if type(found).__name__ == "SolverSide":
            return found
        frame = frame.f_back
"""


def test_a_solution_cannot_read_the_tests_through_a_value_it_brings_along(sandbox):
    """A format string reads any attribute of what it formats: from a Fraction to its module, to every other one."""
    source = SIDE + (
        "def f(x):\n"
        "    text = '{0.limit_denominator.__func__.__globals__[sys].modules[tests].check.__code__.co_consts}'\n"
        "    mine = side()\n"
        "    method = mine.link.ask({'op': 'getattr', 'args': [text, 'format']})\n"
        "    number = method['ok']['ref'][0] if 'ok' in method else 0\n"
        "    told = mine.link.ask({'op': 'call', 'args': [{'yours': number}, mine.encode(Fraction(1, 2))]})\n"
        "    return str(told)[str(told).index('EXP-'):][:10]\n"
    )
    tests = "def check(candidate):\n    assert candidate(1) == 'EXP-123456'\n"
    assert not passes(run(sandbox, source, tests, "f"))
    given = "def check(candidate):\n    assert candidate(str) == 'EXP-123456'\n"
    assert not passes(run(sandbox, source.replace("[text, 'format']", "[mine.encode(x), 'format']"), given, "f"))


def test_a_solution_that_leaves_is_no_exception_that_the_tests_expect(sandbox):
    tests = "import pytest\nfrom solution import f\ndef test():\n    with pytest.raises({}):\n        f()"
    for expected in ("EOFError", "OSError", "Exception", "BaseException"):
        assert not passes(run(sandbox, "import os\ndef f(): os._exit(0)", tests.format(expected)))
    garbage = "import os\ndef f():\n    os.write(3, b'\\x02\\0\\0\\0{{')\n    return 1"
    assert not passes(run(sandbox, garbage, tests.format("Exception")))


def test_a_solution_cannot_name_memory_of_the_judge_to_numpy(sandbox):
    source = "class A:\n    __array_interface__ = {'shape': (1,), 'typestr': '<i8', 'version': 3}\n"
    source += "    def __init__(s, at): s.__array_interface__ = {**A.__array_interface__, 'data': (at, True)}\n"
    source += "    def __getattr__(s, name): raise AttributeError(name)\ndef f(a): return A(id(f))"
    outcome = run(sandbox, source, "import numpy as np\nassert np.array_equal(f(1), np.array([5]))")
    (case,) = outcome.cases
    assert case.status is not GradeStatus.OK
    tests = "import numpy as np\nassert np.asarray(f(1)).dtype == object"
    assert passes(run(sandbox, source, tests))


def test_tests_that_run_what_the_solution_returns_are_marked_weak(sandbox):
    assert run(sandbox, "def f(): return '1'", "assert eval(f()) == 1").weak
    assert run(sandbox, "def f(): return b''", "import pickle\nassert f() == b''").weak


def test_a_context_manager_that_swallows_a_failure_of_the_tests_is_marked_weak(sandbox):
    source = "class C:\n    def __enter__(s): return s\n    def __exit__(s, kind, *rest): return True"
    tests = "def helper(x):\n    if x != 5: raise AssertionError\ndef test():\n    with C():\n        helper(4)"
    assert run(sandbox, source, tests).weak


def test_tests_that_derive_from_a_class_of_the_solution_are_a_fault_of_the_row(sandbox):
    outcome = run(sandbox, "class A: pass", "class B(A):\n    pass\nassert B()")
    assert [case.status for case in outcome.cases] == [GradeStatus.INVALID_GOLD]


@pytest.mark.parametrize(
    "code",
    [
        "from unittest.mock import patch\n@patch('builtins.input', f)\ndef test(_):\n    assert f() == 3",
        "from unittest import mock\ndef test():\n    with mock.patch.object(f, 'x'):\n        assert f() == 3",
        "import io, sys\nsys.stdin = io.StringIO('3')\nassert f() == 3",
        "import solution\nsolution.LIMIT = 3\nassert f() == 3",
        "import solution\nsolution.LIMIT: int = 3\nassert f() == 3",
        "import sys\nsys.stdin: object = None\nassert f() == 3",
        "import unittest.mock as m\nwith m.patch('builtins.input', f):\n    assert f() == 3",
        "import unittest.mock\nwith unittest.mock.patch.dict('os.environ', {}):\n    assert f() == 3",
        "from unittest.mock import patch as p\nwith p.object(f, 'stdout'):\n    assert f() == 3",
    ],
)
def test_tests_that_reach_into_the_solution_are_found_when_the_row_is_read(code):
    from sdpo.errors import DataError
    from sdpo.grading.code_tests import read_tests

    with pytest.raises(DataError, match="runs in another process"):
        read_tests({"type": "assert", "code": code})


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("def patch(a, b): return a[0] + b[0]", "assert patch([1], [2]) == 3"),
        ("class C:\n    def patch(self, path): return path", "assert C().patch('/x') == '/x'"),
        ("class Solution:\n    k = 1", "solution = Solution()\nsolution.k = 3\nassert solution.k == 3"),
        (
            "def f(): print('hello')",
            "import io, sys\nfrom unittest import mock\ndef test():\n"
            "    with mock.patch.object(sys, 'stdout', new_callable=io.StringIO) as out:\n"
            "        f()\n    assert out.getvalue() == 'hello\\n'",
        ),
    ],
    ids=["a function named patch", "a method named patch", "an attribute of a local name", "captured output"],
)
def test_tests_that_only_look_as_if_they_reached_inside_are_run(sandbox, source, code):
    from sdpo.grading.code_tests import read_tests

    read_tests({"type": "assert", "code": code})
    assert passes(run(sandbox, source, code))


def test_a_solution_that_prints_without_end_is_ended(sandbox):
    source = "def f(x):\n    while True:\n        print('x' * 1000)"
    outcome = sandbox.run_assert(source, "assert f(0) == 1", None, Limits(cpu_s=1.0))
    assert [case.status for case in outcome.cases][0] in (GradeStatus.TIMEOUT, GradeStatus.OUTPUT_LIMIT)
