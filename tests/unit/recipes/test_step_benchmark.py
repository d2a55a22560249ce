"""The benchmark of a whole step follows the program: it runs, and its parts are timed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_a_step_of_both_algorithms_is_measured_part_by_part(repository: Path, tmp_path: Path) -> None:
    script, out = repository / "recipes/benchmarks/step.py", tmp_path / "step.json"
    words = ["--model", "builtin://tiny/hard", "--algorithms", "sdpo", "vanilla", "--repeats", "1", "--json", str(out)]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    text = json.dumps(json.loads(out.read_text())["runs"])
    for part in ("rollout", "student forward", "teacher forward", "heads, loss and its gradient", "optimizer"):
        assert part in text, part
