"""Limits, endings and messages of runs in the strongest sandbox of this machine."""

from __future__ import annotations

import time

import pytest

from sdpo.grading.code_tests import read_tests
from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits

FAST = Limits(cpu_s=0.5, memory_mb=256)
PATIENCE = 60  # seconds; far more than a quiet machine needs, far less than for ever
ADD = {"type": "function", "name": "add", "cases": [{"args": [1, 2], "expected": 3}, {"args": [2, 2], "expected": 4}]}
DOUBLE = {"type": "stdin", "cases": [{"input": "4\n", "output": "8\n"}]}


def grade(code_grader, source, tests=DOUBLE, limits=FAST):
    return code_grader.grade_source(source, read_tests(tests), limits)


@pytest.mark.parametrize(
    "source",
    [
        "print(int(input())*2)\nimport sys; sys.exit(0)",
        "print(int(input())*2)\nexit()",
        "print(int(input())*2)\nquit()",
        "print(int(input())*2)\nraise SystemExit",
        "import os\nprint(int(input())*2, flush=True)\nos._exit(0)",
        "import atexit\natexit.register(lambda: print(8))",
        "import threading\nthreading.Timer(0.05, lambda: print(8)).start()",
        "import sys\nsys.stdout.write('8')",
    ],
)
def test_leaving_after_the_right_answer_is_right(code_grader, source):
    assert grade(code_grader, source).status is GradeStatus.OK


def test_a_non_zero_exit_after_the_right_answer_is_a_runtime_error(code_grader):
    result = grade(code_grader, "import sys\nprint(int(input())*2)\nsys.exit(1)")
    assert result.status is GradeStatus.RUNTIME_ERROR
    assert result.reward == 0.0
    assert "SystemExit: 1" in result.feedback


@pytest.mark.parametrize(
    "source",
    [
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "import threading\n[threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start() for _ in range(2)]",
        "import time\ntime.sleep(600)",
        "import threading\nthreading.Event().wait()",
    ],
)
def test_a_program_that_does_not_end_is_ended_in_time(code_grader, source):
    start = time.monotonic()
    result = grade(code_grader, source)
    assert result.status is GradeStatus.TIMEOUT
    assert time.monotonic() - start < PATIENCE
    assert "Time limit exceeded (0.5 s)" in result.feedback


def test_every_call_has_a_deadline_of_its_own(code_grader):
    source = "import time\ndef add(a, b):\n    end = time.process_time() + 0.25\n"
    source += "    while time.process_time() < end: pass\n    return a + b"
    tests = {**ADD, "cases": ADD["cases"] * 2}
    assert grade(code_grader, source, tests).status is GradeStatus.OK


def test_a_child_process_cannot_be_made_and_delays_nothing(code_grader):
    source = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nprint(int(input())*2)"
    start = time.monotonic()
    assert grade(code_grader, source).status is GradeStatus.RUNTIME_ERROR
    assert time.monotonic() - start < PATIENCE


def test_memory_is_limited(code_grader):
    result = grade(code_grader, "x = [bytearray(1 << 24) for _ in range(1000)]")
    assert result.status is GradeStatus.MEMORY_LIMIT
    assert "MemoryError" in result.feedback
    assert grade(code_grader, "def add(a, b): return ' ' * 10**10", ADD).status is GradeStatus.MEMORY_LIMIT


def test_an_output_flood_ends_the_run(code_grader):
    result = grade(code_grader, "while True: print('x' * 1000)")
    assert result.status is GradeStatus.OUTPUT_LIMIT
    assert "Output limit exceeded (stdout)" in result.feedback


def test_the_output_cap_grows_with_the_expected_output(code_grader):
    text = "y" * 300_000
    tests = {"type": "stdin", "cases": [{"input": "", "output": text}]}
    assert grade(code_grader, "print('y' * 300_000)", tests).status is GradeStatus.OK
    assert grade(code_grader, "print('y' * 3_000_000)", tests).status is GradeStatus.OUTPUT_LIMIT


def test_debug_output_does_not_spoil_a_function(code_grader):
    source = "import sys\ndef add(a, b):\n    print('x' * 500_000)\n"
    source += "    print('y' * 500_000, file=sys.stderr)\n    return a + b"
    assert grade(code_grader, source, ADD).status is GradeStatus.OK


def test_an_answer_far_larger_than_the_expected_one_is_not_read(code_grader):
    assert grade(code_grader, "def add(a, b): return 'x' * 5_000_000", ADD).status is GradeStatus.OUTPUT_LIMIT


@pytest.mark.parametrize(
    "source",
    [
        "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\ndef add(a, b): return E()",
        'print(\'PASSED\'); print(\'{"score": 1.0, "status": "pass"}\'); raise SystemExit(0)',
        "def add(a, b): return 0\nimport builtins\nbuiltins.len = lambda *_: 0\nbuiltins.all = lambda *_: True",
        "def add(a, b): return 0\ndef check(*a): return True\nassert_equal = lambda *a: None",
    ],
)
def test_a_program_does_not_decide_its_own_verdict(code_grader, source):
    assert grade(code_grader, source, ADD).reward == 0.0
    code = "assert add(1, 2) == 3\nassert add(2, 2) == 4"
    assert grade(code_grader, source, {"type": "assert", "code": code}).reward == 0.0


def test_the_environment_and_the_working_directory_are_empty(code_grader, monkeypatch, sandbox):
    monkeypatch.setenv("WANDB_API_KEY", "k-123")
    source = (
        "import os\nprint(os.environ.get('WANDB_API_KEY'), os.environ.get('HF_TOKEN'))\nprint(sorted(os.listdir('.')))"
    )
    assert sandbox.run_program(source, b"", FAST).stdout == b"None None\n[]\n"


def test_a_private_test_does_not_come_out_in_the_feedback(sandbox):
    from sdpo.grading.code import CodeGrader
    from sdpo.grading.feedback import FeedbackOptions

    grader = CodeGrader(sandbox, FAST, FeedbackOptions(public_only=True))
    cases = [{"args": [1, 2], "expected": 3}, {"args": [5, 5], "expected": "SECRET-91", "hidden": True}]
    tests = read_tests({**ADD, "cases": cases})
    result = grader.grade_source("def add(a, b): return a + b", tests, FAST)
    assert result.status is GradeStatus.WRONG
    assert "SECRET-91" not in result.feedback


def test_undecodable_output_is_a_wrong_answer(code_grader):
    result = grade(code_grader, "import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')")
    assert result.status is GradeStatus.WRONG


def test_a_segmentation_fault_is_a_runtime_error_with_its_name(code_grader):
    result = grade(code_grader, "import ctypes\nctypes.string_at(0)")
    assert result.status is GradeStatus.RUNTIME_ERROR
    assert "SIGSEGV" in result.feedback


def test_a_runtime_error_shows_only_the_program_s_own_frames_with_source(code_grader):
    source = "def f():\n    return 1/0\nprint(f())"
    feedback = grade(code_grader, source).feedback
    assert feedback == (
        "Runtime error\nInput: 4\n\nZeroDivisionError: division by zero\n"
        "line 3, in <module>: print(f())\nline 2, in f: return 1/0"
    )


def test_a_syntax_error_names_line_and_source(code_grader):
    feedback = grade(code_grader, "x = 1\ny = = 2").feedback
    assert "SyntaxError: invalid syntax" in feedback
    assert "line 2, in <module>: y = = 2" in feedback


def test_leaving_before_the_result_says_so(code_grader):
    feedback = grade(code_grader, "def add(a, b):\n    import os\n    os._exit(0)", ADD).feedback
    assert "The process exited with status 0 before the result was returned" in feedback


def test_a_function_that_is_not_there_is_named(code_grader):
    assert "the solution defines no add" in grade(code_grader, "def plus(a, b): return a + b", ADD).feedback


def test_methods_of_solution_classes_are_called(code_grader):
    source = "class Solution:\n    def add(self, a: int, b: int) -> int:\n        return a + b"
    assert grade(code_grader, source, ADD).status is GradeStatus.OK


def test_a_solution_class_may_use_the_usual_names_and_none_of_them_is_its_answer(code_grader):
    source = "class Solution:\n    def add(self, a: int, b: Optional[int]) -> List[int]:\n"
    source += "        return sum(deque([a, b])) + defaultdict(int)[0] + gcd(0, 0) + len(math.__name__) - 4"
    assert grade(code_grader, source, ADD).status is GradeStatus.OK
    tests = read_tests({"type": "function", "name": "gcd", "cases": [{"args": [4, 6], "expected": 2}]})
    result = code_grader.grade_source("class Solution: pass", tests, FAST)
    assert (result.status, "defines no gcd" in result.feedback) == (GradeStatus.RUNTIME_ERROR, True)
    assert grade(code_grader, "def add(a, b): return sum(deque([a, b]))", ADD).status is GradeStatus.RUNTIME_ERROR


def test_the_passed_fraction_stands_beside_the_reward(code_grader):
    result = grade(code_grader, "def add(a, b): return 3", ADD)
    assert (result.reward, result.passed_fraction) == (0.0, 0.5)
    assert [t.status for t in result.tests] == [GradeStatus.OK, GradeStatus.WRONG]


def test_an_exception_in_one_call_does_not_hide_the_others(code_grader):
    result = grade(code_grader, "def add(a, b):\n    if a == 1: raise ValueError('one')\n    return a + b", ADD)
    assert [t.status for t in result.tests] == [GradeStatus.RUNTIME_ERROR, GradeStatus.OK]
    assert "ValueError: one" in result.feedback


def test_tests_after_a_broken_limit_are_not_run(code_grader):
    start = time.monotonic()
    tests = {**ADD, "cases": ADD["cases"] * 20}
    result = grade(code_grader, "def add(a, b):\n    while True: pass", tests)
    assert result.status is GradeStatus.TIMEOUT
    assert len(result.tests) == 40
    assert time.monotonic() - start < PATIENCE


def test_a_row_may_bring_its_own_limits(code_grader):
    from sdpo.grading.code_tests import read_limits

    assert read_limits({"limits": {"cpu_s": 2, "memory_mb": 64}}, FAST) == Limits(
        2.0, 64, FAST.output_kb, FAST.scratch_mb
    )
    assert read_limits({}, FAST) is FAST
