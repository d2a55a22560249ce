"""Every attack program is stopped under the conditions of every kind of machine that can be made here.

`pytest tests/unit/grading/test_attacks.py --slow -s` prints the whole table, and judges every attack with check(),
pytest and unittest. Needs root: the conditions take rights away.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ATTACKS = HERE.parents[1] / "fixtures" / "attacks"
FOLDERS = [str(ATTACKS.with_name(name)) for name in ("attacks", "more_attacks", "hostile_replies")]
# Condition -> level that the sandbox has to find by itself.
MACHINES = {
    "root": ("", "L3"),
    "user, no user namespaces, no Landlock": ("user,no-userns,no-landlock", "L1"),
}
MORE_MACHINES = {
    "unprivileged user": ("user", "L3"),
    "user, no user namespaces": ("user,no-userns", "L2"),
    "root, mounts refused": ("no-mount", "L3-"),
    "user, mounts refused": ("user,no-mount", "L3-"),
    "root, no user namespaces": ("no-userns", "L2"),
    "root, no Landlock": ("no-landlock", "L3"),
    "user, no Landlock": ("user,no-landlock", "L3"),
    "root in a Docker-like container": ("docker", "L2"),
    "user in a Docker-like container": ("docker,user", "L2"),
    "root in a Docker-like container, no Landlock": ("docker,no-landlock", "L1"),
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="taking rights away needs root")


def run_lab(conditions: str, *options: str) -> dict:
    command = [
        sys.executable,
        str(HERE / "restricted.py"),
        conditions,
        "--",
        sys.executable,
        str(HERE / "attack_lab.py"),
    ]
    result = subprocess.run([*command, *FOLDERS, *options], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def show(capsys, name: str, outcome: dict) -> None:
    open_doors = {attack: found for attack, found in outcome["results"].items() if found}
    total = len(outcome["results"])
    with capsys.disabled():
        print(f"\n{name:46} {outcome['level']:3} {total - len(open_doors)}/{total} stopped")
        for attack, found in open_doors.items():
            print(f"    {attack}: {found}")


@needs_root
@pytest.mark.parametrize("name", [*MACHINES, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_MACHINES)])
def test_every_attack_is_stopped(name, capsys, request):
    conditions, level = (MACHINES | MORE_MACHINES)[name]
    outcome = run_lab(conditions, *([] if request.config.getoption("--slow") else ["--styles", "check"]))
    show(capsys, name, outcome)
    assert outcome["level"] == level, outcome["report"]
    assert {attack: found for attack, found in outcome["results"].items() if found} == {}
    assert len(outcome["results"]) == sum(len(list(Path(folder).glob("*.py"))) for folder in FOLDERS)


def test_every_attack_is_stopped_without_root(capsys):
    """The strongest level of whoever runs the tests."""
    if os.geteuid() == 0:
        pytest.skip("covered by the table")
    result = subprocess.run(
        [sys.executable, str(HERE / "attack_lab.py"), *FOLDERS],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    outcome = json.loads(result.stdout)
    show(capsys, "this user", outcome)
    assert {attack: found for attack, found in outcome["results"].items() if found} == {}


def test_the_laboratory_sees_attacks_succeed_without_a_sandbox(tmp_path):
    """Checks that can fail: three harmless attacks with the walls down."""
    for name in ("I02_read_host_files", "I04_tcp_connect", "I28_raise_priority"):
        (tmp_path / f"{name}.py").write_text((ATTACKS / f"{name}.py").read_text())
    command = [sys.executable, str(HERE / "attack_lab.py"), str(tmp_path), "--level", "L0"]
    outcome = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
    assert outcome["level"] == "L0"
    assert any("canary" in problem for problem in outcome["results"]["I02_read_host_files"])
    assert outcome["results"]["I04_tcp_connect"]
