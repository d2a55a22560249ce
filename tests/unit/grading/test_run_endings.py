"""How a run ends is decided by what it did: not by who looks when, and nothing that it does to itself passes for an
accident."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sdpo.grading.code_tests import read_tests
from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import SandboxFault, ending_of

SHORT = Limits(cpu_s=0.1, memory_mb=128)
STDIN = {"type": "stdin", "cases": [{"input": "", "output": "1"}]}
CALLS = {"type": "function", "name": "f", "cases": [{"args": [i], "expected": 1} for i in range(4)]}
ASSERTS = {"type": "assert", "code": "assert f(1) == 1"}

# Each is run as a program. None of them prints what is expected, none may look like a fault of the sandbox.
TO_ITSELF = {
    **{
        f"signal {number}": f"import os, signal as s\ns.signal({number}, s.SIG_DFL)\nos.kill(os.getpid(), {number})"
        for number in (*range(1, 9), *range(10, 18), *range(20, 32), 34, 50, 64)
    },
    "SIGSTOP": "import os\nos.kill(os.getpid(), 19)\nimport time\ntime.sleep(9)",
    "SIGKILL": "import os\nos.kill(os.getpid(), 9)",
    "SIGKILL to all": "import os\nos.kill(-1, 9)",
    "raised in C": "import ctypes\nctypes.CDLL(None).raise_(24)",
    "abort": "import os\nos.abort()",
    "segmentation fault": "import ctypes\nctypes.string_at(0)",
    "stack overflow": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(x): return [*map(f, [x])]\nf(1)",
    "stack overflow in a thread": (
        "import sys, threading\nsys.setrecursionlimit(1 << 30)\ndef f(x): return [*map(f, [x])]\n"
        "t = threading.Thread(target=f, args=[1])\nt.start()\nt.join()"
    ),
    "limits of its own": (
        "import resource as r\nfor k in range(16):\n    try: r.setrlimit(k, (0, 0))\n    except Exception: pass\n"
        "while True: pass"
    ),
    "every descriptor": "import os\nwhile True: os.dup(0)",
    "no descriptor": "import os\nos.closerange(0, 64)\nwhile True: pass",
    "its channel": "import os\nos.close(3)\nraise ValueError",
    "another channel": "import os\nos.dup2(1, 3)\nraise ValueError",
    "a frame of nonsense": "import os\nos.write(3, b'\\\\xff' * 99)\nraise ValueError",
    "memory": "x = []\nwhile True: x.append(bytearray(1 << 22))",
    "memory and then an error": (
        "x = []\ntry:\n    while True: x.append(bytearray(1 << 16))\nexcept MemoryError: raise ValueError(str(len(x)))"
    ),
    "forks": "import os\nwhile True: os.fork()",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=[9]).start()",
    "its main thread": "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=[9]).start()\n"
    "ctypes.CDLL(None).pthread_exit(None)",
    "its last thread": "import ctypes\nctypes.CDLL(None).pthread_exit(None)",
    "its interpreter": "import ctypes\nctypes.pythonapi.Py_FinalizeEx()\nwhile True: pass",
    "its system calls": "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nraise ValueError",
    "its builtins": "import builtins\nvars(builtins).clear()",
    "its modules": "import sys\nsys.modules.clear()\nraise ValueError",
    "an exit status": "import os\nos._exit(255)",
    "a timer": "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(9)",
    "files": "import os\nfor i in range(10**6): open(f'/w/s/{i}', 'wb').write(bytes(1 << 16))",
}


@pytest.mark.parametrize("box", ["sandbox", "weakest_sandbox"])
def test_nothing_that_a_program_does_to_itself_is_a_fault_of_the_sandbox(request, box):
    runner = request.getfixturevalue(box)
    retries = runner.pool.counters["retries"]
    with ThreadPoolExecutor(6) as threads:
        outcomes = dict(zip(TO_ITSELF, threads.map(lambda s: runner.run_program(s, b"", SHORT), TO_ITSELF.values())))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.stdout.strip() == b"1"} == {}
    assert runner.pool.counters["retries"] == retries
    for name in ("SIGSTOP", "limits of its own", "no descriptor"):
        assert outcomes[name].status is GradeStatus.TIMEOUT, name


def test_only_a_kill_that_the_cpu_limit_cannot_explain_came_from_outside():
    assert ending_of(signal.SIGKILL, SHORT, out_of_cpu=True).status is GradeStatus.TIMEOUT
    with pytest.raises(SandboxFault, match="from outside"):
        ending_of(signal.SIGKILL, SHORT, out_of_cpu=False)
    assert ending_of(signal.SIGXCPU, SHORT, out_of_cpu=False).status is GradeStatus.RUNTIME_ERROR


@pytest.mark.parametrize(("cpu_s", "tests"), [(0.05, 1), (0.5, 40), (4.0, 1), (86_400.0, 1000)])
def test_whoever_is_watched_never_reaches_the_cpu_limit_of_the_kernel(cpu_s, tests):
    """Which counts ticks: a run can be charged for the whole wall time, on every processor."""
    limits = Limits(cpu_s=cpu_s)
    assert limits.hard_cpu(tests) in (1 << 31, limits.hard_cpu(tests))
    assert limits.hard_cpu(tests) >= min(limits.longest_s * tests * os.cpu_count(), 1 << 31)
    assert limits.longest_s >= limits.wall_s


def hold_the_lock(seconds: float) -> None:
    """No other thread of this process runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@pytest.mark.parametrize(
    "ending", ["os._exit(0)", "os._exit(1)", "os.kill(os.getpid(), 11) or os.abort()", "sys.exit(0)", "time.sleep(9)"]
)
def test_an_answer_counts_for_the_one_call_that_it_came_to(code_grader, ending):
    source = (
        "import json, os, struct, sys, time\ndef f(x):\n    body = json.dumps({'value': 1}).encode()\n"
        f"    time.sleep(0.2)\n    os.write(3, struct.pack('<I', len(body)) + body)\n    {ending}"
    )
    code_grader.grade_source(source, read_tests(CALLS), SHORT)  # the server has started
    threading.Timer(0.1, hold_the_lock, [0.4]).start()  # so that answer and end are there together
    result = code_grader.grade_source(source, read_tests(CALLS), SHORT)
    assert [test.status is GradeStatus.OK for test in result.tests[1:]] == [False] * 3
    assert result.reward == 0.0


def test_a_thread_that_ends_the_process_after_an_honest_answer_ends_the_calls_after_it(code_grader):
    source = (
        "import os, threading, time\ndef f(x):\n"
        "    threading.Thread(target=lambda: (time.sleep(0.3), os._exit(0))).start()\n"
        "    return 1 if x == 0 else time.sleep(1)"
    )
    result = code_grader.grade_source(source, read_tests(CALLS), SHORT)
    assert [str(test.status) for test in result.tests] == ["ok", *["runtime_error"] * 3]


def test_what_lies_ready_is_read_before_the_clock_and_cpu_time_stays_exact(code_grader):
    """The interpreter's lock is held for longer than a run may take, while five runs are on their way."""
    late = "import time\ndef f(x):\n    time.sleep(0.3)\n    return 1\n"
    greedy = "import time\ndef f(x):\n    while time.process_time() < 0.5: pass\n    return 1\n"
    runs = [(late, CALLS | {"cases": CALLS["cases"][:1]}), (late + "print(f(0))", STDIN), (late, ASSERTS)]
    runs += [(greedy, CALLS), (greedy + "print(f(0))", STDIN)]
    for _, tests in runs:  # the servers have started
        code_grader.grade_source("def f(x): return 1", read_tests(tests), SHORT)
    hold = threading.Timer(0.1, hold_the_lock, [SHORT.wall_s + 1])
    with ThreadPoolExecutor(5) as threads:
        hold.start()
        grades = list(threads.map(lambda run: code_grader.grade_source(run[0], read_tests(run[1]), SHORT), runs))
    assert [str(grade.status) for grade in grades] == ["ok", "ok", "ok", "timeout", "timeout"]


@pytest.mark.parametrize("kind", ["function", "stdin"])
def test_all_tests_together_may_idle_for_as_long_as_one(code_grader, kind):
    limits, count = Limits(cpu_s=0.05), 6
    source = "import time\ndef f(x):\n    time.sleep(1.9)\n    return 1\n"
    tests = {"function": CALLS, "stdin": STDIN}[kind]
    tests = tests | {"cases": (tests["cases"] * count)[:count]}
    result = code_grader.grade_source(source + ("print(f(0))" if kind == "stdin" else ""), read_tests(tests), limits)
    assert result.status is GradeStatus.TIMEOUT
    assert [test.status for test in result.tests[2:]] == [GradeStatus.TIMEOUT] * (count - 2)
    assert [test.seconds >= 1.0 for test in result.tests[3:]] == [False] * (count - 3)  # they were not run


def test_many_tests_that_sleep_a_little_are_no_idling(code_grader):
    tests = CALLS | {"cases": CALLS["cases"] * 10}
    source = "import time\ndef f(x):\n    time.sleep(0.02)\n    return 1"
    assert code_grader.grade_source(source, read_tests(tests), Limits(cpu_s=0.05)).status is GradeStatus.OK
