"""The one command for GPU numbers runs in its CPU form, and says what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(repository: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    script = repository / "recipes/benchmarks/gpu.sh"
    return subprocess.run(
        [script, "--out", out, *words], capture_output=True, text=True, env=environment, cwd=out.parent
    )


def test_a_part_is_measured_and_on_the_page(repository: Path, tmp_path: Path) -> None:
    done = run(repository, tmp_path / "out", "--cpu", "--parts", "prefix sharing")
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "out/gpu.json").read_text())["parts"]
    shared = parts["prefix sharing"]["result"]
    assert shared["shared"]["tokens"] < shared["padded"]["tokens"] and shared["largest_difference"] < 1e-4
    page = (tmp_path / "out/gpu.md").read_text()
    assert all(f"## {name}\n" in page for name in parts) and "failed" not in page


@pytest.mark.slow
def test_all_parts_run_in_their_cpu_form(repository: Path, tmp_path: Path) -> None:
    done = run(repository, tmp_path / "out", "--cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(json.loads((tmp_path / "out/gpu.json").read_text())["parts"]) == 4
