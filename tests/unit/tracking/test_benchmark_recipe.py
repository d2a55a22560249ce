"""The wall-clock benchmark's held-out file: the task, and beside it what the model can do before training."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from sdpo.data.programs import problems, steps_of
from sdpo.data.rows import to_prompt
from sdpo.grading.registry import kind_of


def test_the_held_out_file_has_the_task_and_what_is_known_before_apart(repository, tmp_path):
    script = repository / "recipes" / "benchmarks" / "grpo_vs_sdpo" / "heldout.py"
    file = tmp_path / "new" / "heldout.jsonl"
    subprocess.run([sys.executable, str(script), str(file), "--problems", "10", "--known", "6"], check=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    prompts = [to_prompt(row, f"row {i}", "here", "prompt", from_table=False) for i, row in enumerate(rows)]
    lengths = Counter((p.data_source, len(steps_of(p))) for p in prompts)
    assert lengths == {("programs", 3): 10, ("programs-known", 1): 3, ("programs-known", 2): 3}
    assert {kind_of(p.data_source) for p in prompts} == {"programs"}
    assert [p.messages for p in prompts[:10]] == [p.messages for p in problems("hard", "test")[:10]]
