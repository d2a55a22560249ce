"""One grader, many callers: hostile outputs keep nobody waiting longer than honest ones do."""

from __future__ import annotations

import threading
import time

from sdpo.grading.code import CodeGrader
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import FunctionOutcome, ProgramOutcome

LIMITS = Limits()
HOSTILE = (
    "1" * 60_000 + "x",
    "1" * 30_000 + "." + "1" * 30_000 + "x",
    "1e" + "1" * 60_000 + "x",
    "+" * 60_000,
    "." * 60_000,
    "1.5 " * 15_000,
    "1.5\n" * 15_000,
    "\r" * 60_000,
    "\u2028" * 20_000,
    "<|" * 30_000,
)
HONEST = ("0.25",) * len(HOSTILE)
STDIN = read_tests({"type": "stdin", "cases": [{"input": "", "output": "0.5"}]})
FUNCTION = read_tests({"type": "function", "name": "f", "cases": [{"args": [], "expected": [0.5]}]})


class Prints:
    """A runner whose programs print, or return, what they consist of."""

    def run_program(self, source, stdin, limits, output_cap=None):
        return ProgramOutcome(GradeStatus.OK, source.encode(), b"", 0)

    def run_function(self, source, name, inputs, limits, *, answer_sizes=None):
        return [FunctionOutcome(GradeStatus.OK, [source, {source: [source]}]) for _ in inputs]


def longest_wait(outputs: tuple[str, ...]) -> float:
    """Seconds that the slowest of fifty small gradings took while four threads graded `outputs`."""
    grader, done = CodeGrader(Prints(), LIMITS, FeedbackOptions()), threading.Event()

    def grade_others() -> None:
        while not done.is_set():
            for output in outputs:
                for tests in (STDIN, FUNCTION):
                    assert grader.grade_source(output, tests, LIMITS).status is GradeStatus.WRONG

    threads = [threading.Thread(target=grade_others, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    waits = []
    for _ in range(50):
        start = time.perf_counter()
        assert grader.grade_source("0.5", STDIN, LIMITS).status is GradeStatus.OK
        waits.append(time.perf_counter() - start)
    done.set()
    for thread in threads:
        thread.join()
    return max(waits)


def test_a_grading_beside_hostile_outputs_waits_about_as_long_as_beside_honest_ones():
    """The lock is handed on every five milliseconds, so each waits a few turns; one quadratic search took a minute."""
    honest = max(longest_wait(HONEST) for _ in range(2))
    assert min(longest_wait(HOSTILE) for _ in range(2)) < 10 * honest + 0.2
