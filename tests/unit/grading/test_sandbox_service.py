"""The sandbox as a service: many callers at once, servers that die, nothing left behind, levels and their reports."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import gc
import itertools
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sdpo.errors import SandboxUnavailable
from sdpo.grading.code import CodeGrader
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import GradeStatus
from sdpo.sandbox import sandbox as sandbox_module
from sdpo.sandbox.inside.plan import Features
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import SandboxFault
from sdpo.sandbox.sandbox import Sandbox, SandboxOptions
from sdpo.sandbox.self_test import Check
from sdpo.sandbox.server import Server

LIMITS = Limits(cpu_s=0.3, memory_mb=128)
STDIN = {"type": "stdin", "cases": [{"input": "4\n", "output": "8\n"}]}
FUNCTION = {"type": "function", "name": "f", "cases": [{"args": [i], "expected": i + 1} for i in range(5)]}
ASSERTS = {"type": "assert", "code": "assert f(1) == 2\nassert f(2) == 3"}
# (source, tests, right verdict)
MIX = (
    ("print(int(input()) * 2)", STDIN, GradeStatus.OK),
    ("print(9)", STDIN, GradeStatus.WRONG),
    ("1 / 0", STDIN, GradeStatus.RUNTIME_ERROR),
    ("def (", STDIN, GradeStatus.RUNTIME_ERROR),
    ("def f(x): return x + 1", FUNCTION, GradeStatus.OK),
    ("def f(x): return x", FUNCTION, GradeStatus.WRONG),
    ("def f(x): return x + 1", ASSERTS, GradeStatus.OK),
    ("def f(x): return x + 2", ASSERTS, GradeStatus.WRONG),
)
HANG = ("while True: pass", STDIN, GradeStatus.TIMEOUT)
FLOOD = ("while True: print('x' * 10_000)", STDIN, GradeStatus.OUTPUT_LIMIT)
PATIENCE_S = 60  # far more than a quiet machine needs
BOMB = ("import os\nwhile True: os.fork()", STDIN, GradeStatus.RUNTIME_ERROR)


def verdict(sandbox, case):
    source, tests, _ = case
    return CodeGrader(sandbox, LIMITS, FeedbackOptions()).grade_source(source, read_tests(tests), LIMITS).status


def descendants() -> set[int]:
    me, children = os.getpid(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, queue = set(), [me]
    while queue:
        for child in children.get(queue.pop(), []):
            found.add(child)
            queue.append(child)
    return found


def resident_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def open_files() -> set[tuple[str, str]]:
    """Number and target of every descriptor, without the one that lists them."""
    gc.collect()
    links = {(fd.name, os.readlink(fd)) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}
    return {(name, target) for name, target in links if target != f"/proc/{os.getpid()}/fd"}


def in_own_process(function: str, *arguments: int) -> str:
    """What a function of this file prints in a fresh interpreter: here, others' threads (those that Ray leaves behind)
    open and close descriptors as they like."""
    command = [sys.executable, "-P", __file__, function, *map(str, arguments)]
    root = str(Path(__file__).parents[3])
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": root})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_32_threads_get_the_verdicts_of_one(sandbox):
    cases = MIX * 10
    alone = [verdict(sandbox, case) for case in MIX] * 10
    with ThreadPoolExecutor(32) as threads:
        together = list(threads.map(lambda case: verdict(sandbox, case), cases))
    assert alone == together == [wanted for _, _, wanted in cases]


def test_32_graders_in_one_event_loop_get_the_verdicts_of_one(sandbox):
    cases = MIX * 5

    async def all_at_once():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        return await asyncio.gather(*(asyncio.to_thread(verdict, sandbox, case) for case in cases))

    assert asyncio.run(all_at_once()) == [wanted for _, _, wanted in cases]


@pytest.mark.slow
def test_32_graders_with_a_sandbox_each_get_the_verdicts_of_one(sandbox):
    from sdpo.config.schema import Config
    from sdpo.grading.registry import build_grader
    from sdpo.records import Prompt

    graders = [build_grader(Config()) for _ in range(32)]

    def grade(number: int) -> list[GradeStatus]:
        answers = [(f"```python\n{source}\n```", tests) for source, tests, _ in MIX]
        return [
            graders[number].grade(Prompt(f"p{number}", (), "code", tests), text, False).status
            for text, tests in answers
        ]

    async def all_at_once():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
        return await asyncio.gather(*(asyncio.to_thread(grade, number) for number in range(32)))

    with ThreadPoolExecutor(32) as threads:
        in_threads = list(threads.map(grade, range(32)))
    in_a_loop = asyncio.run(all_at_once())
    for grader in graders:
        grader.close()
    assert in_threads == in_a_loop == [[wanted for _, _, wanted in MIX]] * 32


def test_a_server_that_is_killed_loses_nothing_and_costs_nobody_a_verdict():
    with Sandbox(SandboxOptions(concurrency=8, retries=5)) as sandbox:
        cases = MIX * 12
        done = itertools.count(1)

        def verdict_and_murder(case):
            result = verdict(sandbox, case)
            if next(done) % 10 == 0:  # while others are in the middle of a run
                for pid in sandbox.pool.processes():
                    os.kill(pid, signal.SIGKILL)
            return result

        with ThreadPoolExecutor(8) as threads:
            verdicts = list(threads.map(verdict_and_murder, cases))
        assert verdicts == [wanted for _, _, wanted in cases]
        assert sandbox.pool.counters["servers_died"] > 0
        assert sandbox.pool.counters["recovered"] > 0
        assert sandbox.pool.counters["failed"] == 0


def test_a_run_that_is_killed_from_outside_is_repeated_and_not_judged(sandbox):
    """As by the kernel when the host runs out of memory."""
    before = sandbox.pool.counters["retries"]
    own, ended, killed = descendants(), threading.Event(), threading.Event()

    def kill_the_child():
        while not ended.is_set():
            for pid in descendants() - own:
                time.sleep(0.05)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return killed.set()

    while not killed.is_set():  # on a busy machine a run may have ended before it was seen
        ended.clear()
        thread = threading.Thread(target=kill_the_child)
        thread.start()
        outcome = sandbox.run_program("import time\ntime.sleep(0.5)\nprint(1)", b"", Limits(cpu_s=1.0))
        ended.set()
        thread.join()
        assert outcome.status is GradeStatus.OK
    assert sandbox.pool.counters["retries"] == before + 1


def test_when_no_server_can_start_the_fault_is_raised_after_the_retries(sandbox, monkeypatch):
    with Sandbox(SandboxOptions(retries=2)) as broken:
        for pid in broken.pool.processes():
            os.kill(pid, signal.SIGKILL)
        attempts = []

        def refuse(plan):
            attempts.append(plan)
            raise SandboxFault("fork server did not start: no memory")

        monkeypatch.setattr("sdpo.sandbox.pool.Server", refuse)
        time.sleep(0.1)
        with pytest.raises(SandboxFault, match="no memory"):
            broken.run_program("print(1)", b"", LIMITS)
        assert len(attempts) == 3


def close_during_a_run() -> None:
    before, files = descendants(), open_files()
    sandbox = Sandbox()
    thread = threading.Thread(
        target=lambda: pytest.raises(SandboxFault, sandbox.run_program, "while True: pass", b"", Limits())
    )
    thread.start()
    time.sleep(0.3)
    sandbox.close()
    thread.join()
    deadline = time.monotonic() + PATIENCE_S
    while descendants() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descendants() - before == set()
    assert open_files() == files, open_files() ^ files
    with pytest.raises(SandboxFault, match="closed"):
        sandbox.run_program("print(1)", b"", LIMITS)
    print("closed")


def test_closing_ends_every_process_and_descriptor():
    assert in_own_process("close_during_a_run") == "closed"


def test_a_server_that_cannot_be_started_is_a_fault_and_leaves_no_descriptor(sandbox, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    plan, before = next(iter(sandbox.pool.plans.values())), open_files()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(SandboxFault, match="did not start.*Cannot allocate memory"):
        Server(plan)
    assert [target for _, target in open_files() - before if "sandbox-server" in target] == []


def test_when_the_grader_is_killed_its_servers_and_runs_end_too():
    script = """
import threading, time
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.sandbox import Sandbox
sandbox = Sandbox()
sleeper = ("import time; time.sleep(99)", b"", Limits(cpu_s=50))
threading.Thread(target=sandbox.run_program, args=sleeper, daemon=True).start()
time.sleep(0.5)
print(*sandbox.pool.processes(), flush=True)
time.sleep(99)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    servers = [int(pid) for pid in process.stdout.readline().split()]
    tree = servers + [int(c) for p in servers for c in Path(f"/proc/{p}/task/{p}/children").read_text().split()]
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in tree) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in tree if Path(f"/proc/{pid}").exists()] == []


def test_a_level_whose_self_test_fails_is_not_used(monkeypatch):
    def pretend(sandbox):
        sound = sandbox.level not in ("L3", "L3-")
        return [Check("a probe", sound, "open" if not sound else "stopped")]

    monkeypatch.setattr(sandbox_module, "self_test", pretend)
    with Sandbox() as sandbox:
        assert sandbox.level in ("L2", "L1")


def test_without_any_sound_level_nothing_runs_unless_that_is_allowed(monkeypatch, caplog):
    monkeypatch.setattr(sandbox_module, "self_test", lambda sandbox: [Check("processes", False, "open")])
    before = descendants()
    with pytest.raises(SandboxUnavailable, match=r"not stopped: processes.*grading.allow_unsafe=true"):
        Sandbox()
    assert descendants() - before == set()
    with Sandbox(SandboxOptions(allow_unsafe=True)) as sandbox:
        assert (sandbox.level, sandbox.report.unsafe) == ("L0", True)
        assert sandbox.run_program("print(1)", b"", LIMITS).stdout == b"1\n"
    assert "NO ISOLATION" in caplog.text


def test_every_grade_without_isolation_carries_a_warning(monkeypatch):
    from sdpo.config.schema import Config
    from sdpo.grading.registry import build_grader
    from sdpo.records import Prompt

    monkeypatch.setattr(sandbox_module, "self_test", lambda sandbox: [Check("processes", False, "open")])
    config = Config()
    config.grading.allow_unsafe = True
    grader = build_grader(config)
    grade = grader.grade(Prompt("p", (), "code", FUNCTION), "```python\ndef f(x): return x + 1\n```", False)
    grader.close()
    assert (grade.status, grade.flags) == (GradeStatus.OK, ("unsafe sandbox",))


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (Features("range", True, True, 7, True), "L3"),
        (Features("single", True, True, 0, True), "L3"),
        (Features("single", True, False, 7, True), "L3-"),
        (Features("none", False, False, 3, True), "L2"),
        (Features("none", False, False, 0, True), "L1"),
        (Features("single", True, False, 0, True), "L1"),
        (Features("none", False, False, 7, False), "L0"),
    ],
)
def test_the_level_follows_from_the_features(features, level):
    assert features.level == level


def test_the_report_names_what_is_weaker_and_why():
    from sdpo.sandbox.report import SandboxReport

    features = Features(seccomp=True, landlock=7, refused={"namespaces": "unshare: Operation not permitted"})
    line = SandboxReport(features, (Check("x", True, "stopped"),)).line()
    assert line.startswith(
        "sandbox L2: landlock 7 + seccomp + rlimits; no namespaces (unshare: Operation not permitted)"
    )
    assert "no scratch directory" in line
    assert line.endswith("self-test 1/1")


def test_the_grader_is_never_forked(sandbox, monkeypatch):
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("the grader was forked"))
    assert [verdict(sandbox, case) for case in MIX] == [wanted for _, _, wanted in MIX]


def test_the_memory_of_a_large_grader_is_in_none_of_its_servers():
    """What it costs in time is measured by recipes/benchmarks/grading.py."""
    ballast = bytearray(b"x" * (1 << 20)) * 512
    with Sandbox(SandboxOptions()) as own:
        assert own.run_program("print(1)", b"", LIMITS).status is GradeStatus.OK
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in own.pool.processes()]
    peaks = [int(re.search(r"VmPeak:\s+(\d+)", status)[1]) >> 10 for status in statuses]
    assert len(peaks) > 0 and max(peaks) < len(ballast) >> 20


def soak(runs: int) -> None:
    """Prints what happened, in a line."""
    start = time.monotonic()
    rng = random.Random(7)
    cases = [
        HANG if (draw := rng.random()) < 0.10 else FLOOD if draw < 0.15 else BOMB if draw < 0.20 else rng.choice(MIX)
        for _ in range(runs)
    ]
    processes, mounts = descendants(), Path("/proc/self/mounts").read_text()
    places = [Path(place) for place in ("/tmp", "/dev/shm", "/var/tmp")]
    files = {place: {p.name for p in place.iterdir() if p.name.startswith("sdpo-sandbox")} for place in places}
    descriptors = open_files()
    with Sandbox(SandboxOptions(concurrency=8, retries=6)) as sandbox:
        with ThreadPoolExecutor(8) as threads:
            done = list(threads.map(lambda case: verdict(sandbox, case), cases[:100]))
            early = resident_mb()
            killer = random.Random(8)
            pending = iter(cases[100:])
            for batch in iter(lambda: list(itertools.islice(pending, 50)), []):
                if killer.random() < 0.5:
                    for pid in sandbox.pool.processes():
                        os.kill(pid, signal.SIGKILL)
                done += threads.map(lambda case: verdict(sandbox, case), batch)
        grown = resident_mb() - early
        assert sandbox.pool.counters["failed"] == 0
    wrong = [(case, got) for case, got in zip(cases, done, strict=True) if got is not case[2]]
    assert wrong == []
    assert grown < 48
    deadline = time.monotonic() + PATIENCE_S
    while descendants() - processes and time.monotonic() < deadline:
        time.sleep(0.1)
    assert descendants() - processes == set()
    assert Path("/proc/self/mounts").read_text() == mounts
    assert {place: {p.name for p in place.iterdir() if p.name.startswith("sdpo-sandbox")} for place in places} == files
    assert open_files() == descriptors, open_files() ^ descriptors
    counts = ", ".join(f"{count} {name}" for name, count in sandbox.pool.counters.items())
    print(f"{len(done)} verdicts right in {time.monotonic() - start:.0f} s; {counts}; memory grew by {grown:.1f} MB")


@pytest.mark.parametrize("runs", [250, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_after_many_hostile_runs_nothing_is_left_and_no_verdict_is_wrong(runs, capsys):
    said = in_own_process("soak", runs)  # asserts every verdict, and what is left of processes, files and memory
    assert said.startswith(f"{runs} verdicts right")
    with capsys.disabled():
        print(f"\n{said}")


def test_limits_are_part_of_a_run(sandbox):
    tight = dataclasses.replace(LIMITS, memory_mb=16)
    assert sandbox.run_program("x = bytearray(64 << 20)", b"", tight).status is GradeStatus.MEMORY_LIMIT
    assert sandbox.run_program("x = bytearray(64 << 20)", b"", LIMITS).status is GradeStatus.OK


if __name__ == "__main__":
    {"soak": soak, "close_during_a_run": close_during_a_run}[sys.argv[1]](*map(int, sys.argv[2:]))
