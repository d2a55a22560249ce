"""The wall-clock benchmark's held-out file: the task, and beside it what the model can do before training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from sdpo.cli.compare import _parse
from sdpo.config.compose import compose
from sdpo.data.rows import to_prompt
from sdpo.embedded.programs import problems, steps_of
from sdpo.grading.registry import kind_of
from sdpo.reporting.comparison.launch import Arm


def test_the_held_out_file_has_the_task_and_what_is_known_before_apart(repository, tmp_path):
    script = repository / "recipes" / "benchmarks" / "grpo_vs_sdpo" / "heldout.py"
    file = tmp_path / "new" / "heldout.jsonl"
    subprocess.run([sys.executable, str(script), str(file), "--problems", "10", "--known", "6"], check=True)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    prompts = [to_prompt(row, f"row {i}", "here", from_table=False) for i, row in enumerate(rows)]
    lengths = Counter((p.data_source, len(steps_of(p))) for p in prompts)
    assert lengths == {("programs", 3): 10, ("programs-known", 1): 3, ("programs-known", 2): 3}
    assert {kind_of(p.data_source) for p in prompts} == {"programs"}
    assert [p.messages for p in prompts[:10]] == [p.messages for p in problems("hard", "test")[:10]]


def _launched(repository: Path, tmp_path: Path, **environment: str) -> list[list[str]]:
    """The words of every command that run.sh starts."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\t" "$@"\necho\n')
    python.chmod(0o755)
    variables = {**os.environ, "PYTHON": str(python), "OUT": str(tmp_path / "out"), **environment}
    script = repository / "recipes" / "benchmarks" / "grpo_vs_sdpo" / "run.sh"
    shown = subprocess.run([str(script)], env=variables, capture_output=True, text=True, check=True).stdout
    return [line.split("\t")[:-1] for line in shown.splitlines()]


def test_grpo_runs_as_it_is_with_normalised_advantages_and_with_four_mini_batches(repository, tmp_path):
    *_, words = _launched(repository, tmp_path, SETTING="rare")
    options = _parse(words[words.index("--out") :])
    arms = {}
    for arm in map(Arm.parse, options.arms):
        config = compose([*options.overrides, *arm.overrides], arm.root)
        actor, data = config.actor_rollout_ref.actor, config.data
        assert (config.actor_rollout_ref.model.path, data.train_batch_size) == ("builtin://tiny/rare", 16)
        steps = data.train_batch_size // actor.ppo_mini_batch_size
        arms[config.trainer.group_name] = (actor.policy_loss.loss_mode, config.algorithm.norm_adv_by_std_in_grpo, steps)
    assert arms == {
        "SDPO": ("sdpo", False, 1),
        "GRPO": ("vanilla", False, 1),
        "GRPO-std": ("vanilla", True, 1),
        "GRPO-4-mini-batches": ("vanilla", False, 4),
    }
    assert len(options.rates) >= 4 and options.tuning_seed not in options.seeds


def test_the_problems_that_rates_are_chosen_on_are_none_of_the_reported_ones(repository, tmp_path):
    *held_out, words = _launched(repository, tmp_path)
    questions = []
    for command in held_out:
        subprocess.run([sys.executable, *command], cwd=repository, check=True)
        rows = [json.loads(line) for line in Path(command[1]).read_text().splitlines()]
        questions.append({json.dumps(row["prompt"]) for row in rows if row["data_source"] == "programs"})
    reported, tuning = questions
    assert len(reported) == len(tuning) == 100 and not reported & tuning
    assert f"data.val_files=[{held_out[0][1]}]" in words
    assert words[words.index("--tuning") + 1] == f"data.val_files=[{held_out[1][1]}]"
