from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest

from sdpo.data.rows import to_prompt

INLINE = ["cluster=inline", "actor_rollout_ref.rollout.name=hf"]
SMALL = [
    "trainer.total_training_steps=1",
    "trainer.test_freq=0",
    "trainer.val_before_train=false",
    "trainer.save_freq=0",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=2",
    "data.max_response_length=32",
]


@pytest.fixture
def task(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("custom_task", repository / "examples/custom_task.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)  # it writes below the current folder
    return module


def test_problems_fit_the_schema_and_the_parts_share_none(task) -> None:
    rows = list(task.problems())
    assert Counter(part for part, _ in rows) == task.PARTS
    prompts = [(part, to_prompt(row, str(i), "row")) for i, (part, row) in enumerate(rows)]
    truths = {part: {json.dumps(p.ground_truth) for q, p in prompts if q == part} for part in task.PARTS}
    assert not truths["train"] & truths["test"]


def test_only_the_steps_in_order_are_right_and_feedback_names_the_first_wrong_one(task) -> None:
    truth = {"steps": ["x = x - 4", "x = x * 3"], "says": ["subtract 4", "multiply by 3"], "input": 5}

    def grade(answer: str):
        return task.grade("written_steps", answer, truth, {})

    assert grade("x = x - 4\nx = x * 3\nreturn x")["reward"] == 1.0
    for answer, words in (
        ("x = x * 3\nx = x - 4\nreturn x", "Step 1 should be: subtract 4"),
        ("x = x - 4\nreturn x", "Step 2 should be: multiply by 3"),
        ("x = x - 4\nx = x * 3", "Step 3 should be: return x"),
        ("x = x - 4\nx = x * 3\nreturn x\nreturn x", "Step 4 should be: nothing more"),
        ("x = x * 3\nreturn x", "Input: 5\nExpected: 3\nGot: 15\nStep 1"),
        ("x = eval(x)", "Wrong answer\nStep 1 should be"),
        ("", "Step 1 should be: subtract 4"),
    ):
        assert grade(answer)["reward"] == 0.0 and words in grade(answer)["feedback"]


def test_it_trains_the_embedded_model(task) -> None:
    assert task.main([*INLINE, *SMALL]) == 0
    lines = [json.loads(x) for x in Path("runs/custom_task/run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1]
    samples = [json.loads(x) for x in Path("runs/custom_task/run/samples.jsonl").read_text().splitlines()]
    assert any("should be" in str(sample) for sample in samples)
