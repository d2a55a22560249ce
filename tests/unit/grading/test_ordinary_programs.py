"""Right programs of many kinds pass, at every level: a grader that rejects them trains noise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from program_files import read_programs

from sdpo.sandbox.limits import Limits

LIMITS = Limits(cpu_s=6.0, memory_mb=512)
NEEDS_FILES = {"locale", "temporary file", "write and read a file", "listdir", "zoneinfo"}

PROGRAMS = {
    name: (entry["program"], entry.get("input", ""), entry["output"])
    for name, entry in read_programs("ordinary.txt").items()
}
LINES = [str(number) for number in range(10_000)]
PROGRAMS |= {
    "large output": ("print('\\n'.join(map(str, range(10_000))))", "", "\n".join(LINES) + "\n"),
    "large input": ("print(sum(map(int, input().split())))", " ".join(LINES), f"{sum(range(10_000))}\n"),
    "stdin.buffer": ("import sys\nprint(len(sys.stdin.buffer.read().split()))", "a b c\n" * 1000, "3000\n"),
    "no newline at the end": ("print(int(input()) + int(input()))\n", "1\n2", "3\n"),
}


def test_there_are_at_least_sixty_kinds():
    assert len(PROGRAMS) >= 60


def rejected(sandbox, names) -> dict[str, str]:
    def said(name: str) -> str:
        program, stdin, expected = PROGRAMS[name]
        outcome = sandbox.run_program(program, stdin.encode(), LIMITS, 1 << 20)
        if outcome.status == "ok" and outcome.stdout.decode().rstrip() == expected.rstrip():
            return ""
        return f"{outcome.status} {outcome.stdout[-200:]} {outcome.fault or outcome.detail} {outcome.stderr[-300:]}"

    with ThreadPoolExecutor(4) as threads:
        return {name: text for name, text in zip(names, threads.map(said, names)) if text}


def test_every_ordinary_program_is_accepted(sandbox):
    names = PROGRAMS if sandbox.features.mounts else PROGRAMS.keys() - NEEDS_FILES
    assert rejected(sandbox, names) == {}


def test_every_ordinary_program_without_files_is_accepted_at_the_weakest_level(weakest_sandbox):
    assert rejected(weakest_sandbox, PROGRAMS.keys() - NEEDS_FILES) == {}


@pytest.mark.parametrize("level", ["L2", pytest.param("L3-", marks=pytest.mark.slow)])
def test_every_ordinary_program_without_files_is_accepted_in_between(level):
    from sdpo.sandbox.sandbox import Sandbox, SandboxOptions

    with Sandbox(SandboxOptions(ceiling=level)) as sandbox:
        assert rejected(sandbox, PROGRAMS.keys() - NEEDS_FILES) == {}
