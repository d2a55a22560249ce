"""Runs folders of attack programs (tests/fixtures/attacks/README.md) and of replies of a hostile service against the
code grader and says which were stopped.

    python attack_lab.py FOLDER ... [--level L3|L3-|L2|L1] [--styles check pytest unittest]

Prints one JSON object: level, report, results.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import re
import resource
import secrets
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from hostile_service import hostile_service

from sdpo.grading.backends import http
from sdpo.grading.backends.http import HttpRunner
from sdpo.grading.backends.retry import Retry
from sdpo.grading.code import WEAK, CodeGrader
from sdpo.grading.code_tests import read_tests
from sdpo.grading.feedback import FeedbackOptions
from sdpo.records import Grade, GradeStatus
from sdpo.sandbox.limits import Limits
from sdpo.sandbox.outcome import SandboxFault
from sdpo.sandbox.sandbox import Sandbox, SandboxOptions

LIMITS = Limits(cpu_s=0.5)
GRACE_SECONDS = 15.0
DROP_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
BENIGN = {"type": "function", "name": "solve", "cases": [{"args": [20], "expected": 41}]}
PORT = 10_000 + os.getpid() % 20_000  # in the place of the attacks' own 18999: two laboratories may work at once
HELD_SECONDS = 3 * LIMITS.cpu_s + 4  # longer than a run may take
ASSERT_STYLES = {
    "check": "def check(candidate):\n    assert candidate(1) == '{first}'\n    assert candidate(2) == '{second}'\n",
    "pytest": "from solution import solve\ndef test_one():\n    assert solve(1) == '{first}'\n"
    "class TestTwo:\n    def test(self):\n        assert solve(2) == '{second}'\n",
    "unittest": "import unittest\nfrom solution import solve\nclass Cases(unittest.TestCase):\n    def test(self):\n"
    "        self.assertEqual(solve(1), '{first}')\n        self.assertIn(solve(2), ['{second}'])\n",
}


@dataclass
class Lab:
    """The host side of an attack: canaries, listeners, drop folders."""

    host: Path
    canary: str = field(default_factory=lambda: "CANARY-" + secrets.token_hex(16))
    hits: list[str] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)

    def prepare(self) -> None:
        self.host.chmod(0o777)
        for name, mode in (("secret_pub.txt", 0o644), ("secret_root.txt", 0o600), ("secret_fd.txt", 0o600)):
            (self.host / name).write_text(self.canary)
            (self.host / name).chmod(mode)
        (self.host / "drop").mkdir()
        (self.host / "drop").chmod(0o777)
        (self.host / "precious").mkdir()
        (self.host / "precious" / "keep.txt").write_text("keep")
        os.environ["GRADER_SECRET"] = self.canary
        self.open_fd = os.open(self.host / "secret_fd.txt", os.O_RDONLY)
        os.set_inheritable(self.open_fd, True)
        self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", PORT))
        self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", PORT))
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0attackprobe")
        self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(self.host / "sock"))

    def _listen(self, family: int, kind: int, address: object) -> None:
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)  # type: ignore[arg-type]
        except OSError:
            listener.close()
            return  # another test run holds the port; its listener would see the hit
        self.sockets.append(listener)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        threading.Thread(target=self._wait, args=(listener, kind), daemon=True).start()

    def _wait(self, listener: socket.socket, kind: int) -> None:
        try:
            if kind == socket.SOCK_STREAM:
                listener.accept()
            else:
                listener.recvfrom(100)
            self.hits.append(str(listener.getsockname()))
        except OSError:
            return


def problems(grader: CodeGrader, lab: Lab, path: Path, styles: Sequence[str]) -> tuple[list[str], list[Grade]]:
    """What the attack achieved; empty when it was stopped."""
    text = path.read_text()
    kinds = header(text, "KINDS").split()
    tests = "\n".join(re.findall(r"^# TESTS: (.*)$", text, re.MULTILINE))
    if "assert" in kinds and not tests:
        kinds = [kind for kind in kinds if kind != "assert"] + list(styles)
    checks = set(header(text, "CHECK").split())
    source = text.replace("@HOST@", str(lab.host)).replace("@SCRATCH@", str(lab.host / "scratch"))
    source = source.replace("18999", str(PORT))
    found: list[str] = []
    grades = []
    if kinds == ["reply"]:
        return reply_problems(lab, path, checks, int(header(text, "REPEAT") or 4))
    for kind in kinds:
        repeat = 2 if "persist" in text.lower() else 1
        for _ in range(repeat):
            if kind == "late":
                threading.Timer(0.2, hold_the_lock, [HELD_SECONDS]).start()
            start = time.monotonic()
            run = quiet(grader) if kind.startswith("hidden-") else grader
            grade = run.grade_source(source, case_for(kind, tests), LIMITS)
            grades.append(grade)
            found += [f"{kind}: {problem}" for problem in judge(grade, checks, lab, time.monotonic() - start)]
    if "grader-ok" in checks and not grader_still_right(grader):
        found.append("the grader misjudges honest code afterwards")
    return found, grades


def hold_the_lock(seconds: float) -> None:
    """No other thread of this process runs meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def reply_problems(lab: Lab, path: Path, checks: set[str], count: int) -> tuple[list[str], list[Grade]]:
    """The same for the replies of a service, by whatever test they answer. A fault of the service is no problem."""
    found, grades = [], []
    http.NETWORK_SECONDS = 0.5
    with hostile_service(path) as url:
        grader = CodeGrader(HttpRunner(url, Retry(0)), Limits(cpu_s=0.05), FeedbackOptions())
        for number in range(count):
            start = time.monotonic()
            try:
                grade = grader.grade_source("solve = print", case_for(("func", "stdin", "check")[number % 3]), LIMITS)
            except SandboxFault:
                grade = Grade(GradeStatus.NO_TESTS, None)
            grades.append(grade)
            found += [f"{number}: {problem}" for problem in judge(grade, checks, lab, time.monotonic() - start)]
    return found, grades


def header(text: str, name: str) -> str:
    match = re.search(rf"^# {name}: (.*)$", text, re.MULTILINE)
    return match[1] if match else ""


def quiet(grader: CodeGrader) -> CodeGrader:
    """The same, with feedback about public tests only."""
    return CodeGrader(grader.runner, grader.limits, dataclasses.replace(grader.options, public_only=True))


def case_for(kind: str, tests: str = ""):
    """`tests`: of an attack on tests of its own, instead of "solve(1) is a random token"."""
    token, second = (f"EXP-{secrets.token_hex(16)}" for _ in range(2))
    if kind.startswith("hidden-"):
        return read_tests(with_hidden_part(kind, f"HIDDEN-{secrets.token_hex(16)}", token))
    if tests:
        return read_tests({"type": "assert", "code": tests, "entry_point": "solve"})
    if kind == "func":
        return read_tests(
            {
                "type": "function",
                "name": "solve",
                "cases": [{"args": [1], "expected": token}, {"args": [2], "expected": second}],
            }
        )
    if kind in ("constant", "late", "many"):
        calls = [{"args": [i], "expected": i if kind == "many" else 1} for i in range(1, 13 if kind == "many" else 4)]
        return read_tests({"type": "function", "name": "solve", "cases": calls})
    if kind in ("stdin", "number"):
        output = token if kind == "stdin" else "0.5"
        return read_tests({"type": "stdin", "cases": [{"input": "1\n", "output": output}]})
    code = ASSERT_STYLES[kind].format(first=token, second=second)
    return read_tests({"type": "assert", "code": code, "entry_point": "solve"})


def with_hidden_part(kind: str, hidden: str, token: str) -> dict:
    """A hidden test whose input is a secret, and two public ones after it."""
    inputs = [(hidden, True), ("public", False), ("public again", False)]
    if kind == "hidden-stdin":
        return {"type": "stdin", "cases": [{"input": i, "output": token, "hidden": h} for i, h in inputs]}
    if kind == "hidden-func":
        cases = [{"args": [i], "expected": token, "hidden": h} for i, h in inputs]
        return {"type": "function", "name": "solve", "cases": cases}
    code = {h: "\n".join(f"assert solve({i!r}) == {token!r}" for i, kind in inputs if kind is h) for h in (False, True)}
    return {"type": "assert", "code": code[False], "hidden_code": code[True]}


def judge(grade: Grade, checks: set[str], lab: Lab, seconds: float) -> list[str]:
    said = grade.feedback + json.dumps([[t.input, t.got, t.error] for t in grade.tests])
    found = []
    if grade.status is GradeStatus.INFRA_ERROR:
        found.append("the sandbox broke")
    if "notpass" in checks and (grade.status is GradeStatus.OK or grade.reward):
        found.append("passed")
    if "right" in checks and grade.status is not GradeStatus.OK or "timeout" in checks and not timed_out(grade):
        found.append(f"is {grade.status}")
    if "notclean" in checks and grade.status is GradeStatus.OK and WEAK not in grade.flags:
        found.append("passed without a mark")
    if "nohidden" in checks and "HIDDEN-" in grade.feedback:
        found.append("a hidden input came out")
    if lab.canary in said:
        found.append("a canary came out")
    if "EVIDENCE" in said:
        found.append("evidence: " + said[said.index("EVIDENCE") :][:80])
    if lab.hits:
        found.append(f"reached {lab.hits}")
    dropped = [str(p) for place in DROP_PLACES for p in Path(place).glob("attackpwn-*")] + [
        str(p) for p in (lab.host / "drop").iterdir()
    ]
    if dropped:
        found.append(f"left {dropped}")
    if any(name == "attackdaemon" for name in process_names()):
        found.append("left a process")
    if not (lab.host / "precious" / "keep.txt").exists():
        found.append("deleted a file of the host")
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # others may keep the machine from ending it
    if seconds > (3 * LIMITS.cpu_s + 2 + GRACE_SECONDS) * busy:
        found.append(f"took {seconds:.1f} s")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\ud800-\udfff]|<\|im_", grade.feedback):
        found.append("dirty feedback")
    return found


def timed_out(grade: Grade) -> bool:
    return grade.status is GradeStatus.TIMEOUT and grade.reward == 0.0


def process_names() -> list[str]:
    names = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                names.append((entry / "comm").read_text().strip())
            except OSError:
                continue
    return names


def grader_still_right(grader: CodeGrader) -> bool:
    tests = read_tests(BENIGN)
    right = grader.grade_source("def solve(x): return 2 * x + 1", tests, LIMITS)
    wrong = grader.grade_source("def solve(x): return 2 * x", tests, LIMITS)
    return right.status is GradeStatus.OK and wrong.status is GradeStatus.WRONG


def options_for(level: str) -> SandboxOptions:
    return SandboxOptions(ceiling=level, allow_unsafe=level == "L0")


def run(folders: list[Path], level: str, styles: Sequence[str]) -> dict:
    with tempfile.TemporaryDirectory(prefix="attack-lab-") as host, Sandbox(options_for(level)) as sandbox:
        lab = Lab(Path(host))
        lab.prepare()
        grader = CodeGrader(sandbox, LIMITS, FeedbackOptions())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        paths = [path for folder in folders for path in sorted(folder.glob("*.py"))]
        alone = [path for path in paths if header(path.read_text(), "KINDS") == "late"]  # nobody else is held up
        paths = [path for path in paths if path not in alone]
        with ThreadPoolExecutor(8) as threads:
            outcomes = list(threads.map(lambda path: problems(grader, lab, path, styles), paths))
        outcomes += [problems(grader, lab, path, styles) for path in alone]
        paths += alone
        results = {path.stem: found for path, (found, _) in zip(paths, outcomes, strict=True)}
        statuses = {
            path.stem: [str(g.status) for g in grades] for path, (_, grades) in zip(paths, outcomes, strict=True)
        }
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if grown > 64:
            results["(grader)"] = [f"the grader grew by {grown:.0f} MB"]
        return {"level": sandbox.level, "report": sandbox.report.line(), "results": results, "statuses": statuses}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--level", default="L3")
    parser.add_argument("--styles", nargs="+", choices=ASSERT_STYLES, default=list(ASSERT_STYLES))
    options = parser.parse_args()
    print(json.dumps(run(options.folders, options.level, options.styles)))


if __name__ == "__main__":
    main()
