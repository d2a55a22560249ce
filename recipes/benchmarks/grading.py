"""Speed of the sandbox beside an ordinary subprocess, in interleaved windows of one run.

    python recipes/benchmarks/grading.py [--windows 5] [--seconds 2] [--level L3] [--ballast-gb 2] [--threads 4]

Prints the median over the windows: runs a second, wall and CPU milliseconds a run (grader, fork server and children
together).
`--ballast-gb` fills the grading process's memory first: a grader that forks itself gets slower with it, this one must
not.
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sdpo.grading.sandbox.limits import Limits
from sdpo.grading.sandbox.sandbox import Sandbox, SandboxOptions

PROGRAM = "print(1)"
FUNCTION = "def f(a, b):\n    return a + b\n"
INPUTS = [[i, i + 1] for i in range(10)]
ASSERTS = "\n".join(f"assert f({a}, {b}) == {a + b}" for a, b in INPUTS)
TICKS = os.sysconf("SC_CLK_TCK")
LIMITS = Limits()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--level", default="L3")
    parser.add_argument("--ballast-gb", type=float, default=0.0)
    options = parser.parse_args()
    ballast = bytearray(os.urandom(1 << 20) * int(options.ballast_gb * 1024))
    with tempfile.TemporaryDirectory() as folder, Sandbox(SandboxOptions(ceiling=options.level)) as sandbox:
        path = Path(folder) / "program.py"
        path.write_text(PROGRAM)

        def cpu() -> float:
            own = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
            mine = sum(usage.ru_utime + usage.ru_stime for usage in own)
            return mine + sum(map(tree_cpu, sandbox.pool.processes()))

        cases: dict[str, Callable[[], object]] = {
            "subprocess + rlimits, print(1)": lambda: plain_subprocess(str(path)),
            "sandbox, print(1)": lambda: sandbox.run_program(PROGRAM, b"", LIMITS),
            "sandbox, function x 10 tests": lambda: sandbox.run_function(FUNCTION, "f", INPUTS, LIMITS),
            "sandbox, 10 asserts (two processes)": lambda: sandbox.run_assert(FUNCTION, ASSERTS, None, LIMITS),
        }
        for action in cases.values():
            action()
        results: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        for _ in range(options.windows):
            for name, action in cases.items():
                results[name].append(window(action, options.threads, options.seconds, cpu))
        print(sandbox.report.line())
        print(f"{len(ballast) >> 20} MB of ballast, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
        print(f"{'':38}{'runs/s':>8}{'CPU ms/run':>12}{'ratio':>8}")
        base = statistics.median(spent for _, spent in results["subprocess + rlimits, print(1)"])
        for name, rows in results.items():
            rate, spent = (statistics.median(column) for column in zip(*rows))
            print(f"{name:38}{rate:8.0f}{spent * 1e3:12.2f}{base / spent:8.1f}")


if __name__ == "__main__":
    main()
