"""Speed of the sandbox beside an ordinary subprocess, in interleaved windows of one run.

    python recipes/benchmarks/grading.py [--windows 5] [--seconds 2] [--level L3] [--ballast-gb 2] [--threads 4]
                                         [--json FILE]

Prints the median over the windows: runs a second, CPU milliseconds a run (grader, fork server and children together),
and how many times less CPU that is than the subprocess. In every window the sandbox is also measured while this
process holds `--ballast-gb` of memory: a grader that forks itself gets slower with it, this one must not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sdpo.records import GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.sandbox import Sandbox, SandboxOptions

PROGRAM = "print(1)"
FUNCTION = "def f(a, b):\n    return a + b\n"
INPUTS = [[i, i + 1] for i in range(10)]
ASSERTS = "\n".join(f"assert f({a}, {b}) == {a + b}" for a, b in INPUTS)
TICKS = os.sysconf("SC_CLK_TCK")
LIMITS = Limits()
SUBPROCESS, BALLAST = "subprocess + rlimits, print(1)", ", memory held"


def tree_cpu(pid: int) -> float:
    """CPU seconds of a process, its living descendants and all they have reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS + sum(tree_cpu(int(child)) for child in children)


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, 16 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def plain_subprocess(path: str) -> None:
    result = subprocess.run([sys.executable, path], capture_output=True, timeout=10, preexec_fn=limited)
    assert result.stdout == b"1\n"


def window(action: Callable[[], object], threads: int, seconds: float, cpu: Callable[[], float]) -> tuple[float, float]:
    """(runs a second, CPU seconds a run)."""
    end = time.perf_counter() + seconds

    def loop() -> int:
        done = 0
        while time.perf_counter() < end:
            action()
            done += 1
        return done

    start, cpu_start = time.perf_counter(), cpu()
    with ThreadPoolExecutor(threads) as pool:
        runs = sum(pool.map(lambda _: loop(), range(threads)))
    return runs / (time.perf_counter() - start), (cpu() - cpu_start) / runs


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The windows of every case, and what they were made with."""
    with tempfile.TemporaryDirectory() as folder, Sandbox(SandboxOptions(ceiling=options.level)) as sandbox:
        path = Path(folder) / "program.py"
        path.write_text(PROGRAM)

        def cpu() -> float:
            own = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
            mine = sum(usage.ru_utime + usage.ru_stime for usage in own)
            return mine + sum(map(tree_cpu, sandbox.pool.processes()))

        def ok(*statuses: GradeStatus) -> None:
            assert set(statuses) == {GradeStatus.OK}, statuses  # a run that fails at once is no fast run

        base: dict[str, Callable[[], object]] = {SUBPROCESS: lambda: plain_subprocess(str(path))}
        cases: dict[str, Callable[[], object]] = {
            "sandbox, print(1)": lambda: ok(sandbox.run_program(PROGRAM, b"", LIMITS).status),
            "sandbox, function x 10 tests": lambda: ok(
                *(call.status for call in sandbox.run_function(FUNCTION, "f", INPUTS, LIMITS))
            ),
            "sandbox, 10 asserts (two processes)": lambda: ok(
                *(case.status for case in sandbox.run_assert(FUNCTION, ASSERTS, None, LIMITS).cases)
            ),
        }
        for action in (base | cases).values():
            action()
        windows: dict[str, list[tuple[float, float]]] = {}

        def run_all(actions: dict[str, Callable[[], object]], suffix: str = "") -> None:
            for name, action in actions.items():
                row = window(action, options.threads, options.seconds, cpu)
                windows.setdefault(name + suffix, []).append(row)

        for _ in range(options.windows):
            run_all(base | cases)
            if options.ballast_gb:
                ballast = bytearray(os.urandom(1 << 20)) * int(options.ballast_gb * 1024)
                run_all(cases, BALLAST)
                del ballast
        return {"sandbox": sandbox.report.line(), "options": vars(options), "load": os.getloadavg()[0]} | {
            "windows": {name: [{"runs_per_s": r, "cpu_s": c} for r, c in rows] for name, rows in windows.items()}
        }


def summarize(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Case -> medians over the windows and the two ratios."""
    medians = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for name, rows in result["windows"].items()
    }
    for name, row in medians.items():
        row["times_less_cpu"] = medians[SUBPROCESS]["cpu_s"] / row["cpu_s"]
        if name.endswith(BALLAST):
            row["slowdown"] = medians[name.removesuffix(BALLAST)]["runs_per_s"] / row["runs_per_s"]
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one case in one window")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--level", default="L3")
    parser.add_argument("--ballast-gb", type=float, default=2.0, help="0: without that comparison")
    parser.add_argument("--json", type=Path, help="also write the windows and their medians here")
    options = parser.parse_args()
    result = measure(options)
    medians = summarize(result)
    print(result["sandbox"])
    print(f"{options.windows} windows, {options.threads} threads, load {result['load']:.1f}")
    print(f"{'':52}{'runs/s':>8}{'CPU ms/run':>12}{'less CPU':>10}{'slowdown':>10}")
    for name, row in medians.items():
        slowdown = f"{row['slowdown']:10.2f}" if "slowdown" in row else ""
        print(f"{name:52}{row['runs_per_s']:8.0f}{row['cpu_s'] * 1e3:12.2f}{row['times_less_cpu']:10.1f}{slowdown}")
    if options.json:
        text = json.dumps(result | {"medians": medians}, indent=1, default=str)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
