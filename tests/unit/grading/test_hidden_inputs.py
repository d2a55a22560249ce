"""Where feedback may only speak of public tests, hidden inputs stay hidden, whatever a program keeps between calls."""

from __future__ import annotations

import pytest

from sdpo.grading.code import CodeGrader
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits

LIMITS = Limits(cpu_s=1.0, memory_mb=256)
SECRET = "SECRET-4711"
TELLS = {
    "returned": "def f(x):\n    KEPT.append(x)\n    return str(KEPT)",
    "raised": "def f(x):\n    KEPT.append(x)\n    raise ValueError(str(KEPT))",
    "printed": "def f(x):\n    KEPT.append(x)\n    print(KEPT)\n    return 0",
    "kept in a default argument": "def f(x, kept=[]):\n    kept.append(x)\n    return kept[:]",
    "in the text of a line": "import linecache\ndef f(x):\n    KEPT.append(x)\n"
    "    linecache.cache['solution.py'] = (1, None, [str(KEPT)] * 9, 'solution.py')\n    return 1 / 0",
    "in the name of an exception": "def f(x):\n    KEPT.append(x)\n    raise type(str(KEPT), (Exception,), {})()",
    "as what the function is called": "def f(x):\n    KEPT.append(x)\n    def g(): return 1 / 0\n"
    "    g.__code__ = g.__code__.replace(co_name=str(KEPT))\n    return g()",
    "in a file": "def f(x):\n    KEPT.append(x)\n    try:\n        open('kept', 'a').write(str(x))\n"
    "        return open('kept').read()\n    except OSError:\n        return str(KEPT)",
    "in a thread that answers later": "import threading, time\ndef keep(x):\n    time.sleep(0.01)\n    KEPT.append(x)\n"
    "def f(x):\n    threading.Thread(target=keep, args=(x,)).start()\n    time.sleep(0.05)\n    return str(KEPT)",
}


def grade(sandbox, source, truth, public_only=True):
    grader = CodeGrader(sandbox, LIMITS, FeedbackOptions(public_only=public_only))
    return grader.grade_source("KEPT = []\n" + source, read_tests(truth), LIMITS)


@pytest.mark.parametrize("way", TELLS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_hidden_argument_never_comes_out_of_a_later_call(sandbox, way, place):
    cases = [{"args": ["public"], "expected": "-"}, {"args": ["also public"], "expected": "-"}]
    cases.insert(place, {"args": [SECRET], "expected": "-", "hidden": True})
    found = grade(sandbox, TELLS[way], {"type": "function", "name": "f", "cases": cases})
    assert found.feedback
    assert SECRET not in found.feedback
    assert [test.hidden for test in found.tests] == [case.get("hidden", False) for case in cases]


@pytest.mark.parametrize("way", TELLS)
def test_hidden_standard_input_never_comes_out_of_a_later_run(sandbox, way):
    cases = [{"input": SECRET, "output": "-", "hidden": True}, {"input": "public", "output": "-"}]
    found = grade(sandbox, TELLS[way] + "\nprint(f(input()))", {"type": "stdin", "cases": cases})
    assert found.feedback
    assert SECRET not in found.feedback


@pytest.mark.parametrize("way", TELLS)
def test_a_hidden_assert_never_comes_out_of_a_public_one(sandbox, way):
    truth = {"type": "assert", "code": "assert f('public') == '-'", "hidden_code": [f"assert f({SECRET!r}) == '-'"]}
    found = grade(sandbox, TELLS[way], truth)
    assert found.feedback
    assert SECRET not in found.feedback


def test_without_the_setting_the_same_program_tells_the_hidden_argument(sandbox):
    cases = [{"args": [SECRET], "expected": "-", "hidden": True}, {"args": ["public"], "expected": "-"}]
    truth = {"type": "function", "name": "f", "cases": cases}
    assert SECRET in grade(sandbox, TELLS["returned"], truth, public_only=False).feedback


def test_the_feedback_of_hidden_tests_alone_is_empty(sandbox):
    truth = {"type": "assert", "code": "", "hidden_code": f"assert f({SECRET!r}) == '-'"}
    found = grade(sandbox, TELLS["raised"], truth)
    assert (found.status, found.feedback) == (GradeStatus.RUNTIME_ERROR, "")


def test_hidden_tests_count_whether_or_not_they_are_told(sandbox):
    cases = [{"args": [1], "expected": 1}, {"args": [2], "expected": 3, "hidden": True}, {"args": [4], "expected": 4}]
    truth = {"type": "function", "name": "f", "cases": cases}
    for public_only in (True, False):
        found = grade(sandbox, "def f(x): return x", truth, public_only)
        assert (found.status, found.reward) == (GradeStatus.WRONG, 0.0)
        assert [str(test.status) for test in found.tests] == ["ok", "wrong", "ok"]
    asserts = {"type": "assert", "code": "assert f(1) == 1", "hidden_code": "assert f(2) == 3", "entry_point": "f"}
    assert grade(sandbox, "def f(x): return x", asserts).status is GradeStatus.WRONG
    assert grade(sandbox, "def f(x): return x + (x > 1)", asserts).status is GradeStatus.OK


class Counting:
    """A runner that counts its calls."""

    def __init__(self, sandbox):
        self.sandbox, self.runs = sandbox, 0

    def run_function(self, *args, **kwargs):
        self.runs += 1
        return self.sandbox.run_function(*args, **kwargs)


@pytest.mark.parametrize(
    ("public_only", "hidden", "runs"), [(False, [0, 1], 1), (True, [0, 0], 1), (True, [1, 1], 1), (True, [0, 1], 2)]
)
def test_there_are_two_runs_only_where_both_kinds_of_tests_need_them(sandbox, public_only, hidden, runs):
    runner = Counting(sandbox)
    cases = [{"args": [1], "expected": 1, "hidden": bool(flag)} for flag in hidden]
    tests = read_tests({"type": "function", "name": "f", "cases": cases})
    grader = CodeGrader(runner, LIMITS, FeedbackOptions(public_only=public_only))
    assert grader.grade_source("def f(x): return x", tests, LIMITS).reward == 1.0
    assert runner.runs == runs
