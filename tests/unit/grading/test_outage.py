"""A sandbox that stops working stops training with a named error, loses no sample, and the run goes on when it is
back."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = [
    "cluster=inline",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "data.train_max_samples=4",
    "data.val_max_samples=4",
    "trainer.val_before_train=false",
    "trainer.total_training_steps=2",
    "trainer.save_freq=1",
    "trainer.log_samples=-1",
    "grading.retries=4",
]


def lines(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_an_outage_stops_training_with_a_named_error_and_resume_goes_on(programs, tmp_path):
    broken = tmp_path / "run"
    settings = [*SETTINGS, f"trainer.default_local_dir={broken}"]
    stopped = programs.run(HERE / "outage.py", "2", *settings)
    assert stopped.returncode == 6, stopped.stderr[-2000:]
    assert "could not be graded" in stopped.stderr
    assert "out of memory" in stopped.stderr
    (metrics,) = lines(broken, "metrics.jsonl")
    assert metrics["step"] == 1
    assert metrics["grade/queue_depth"] > 0
    assert metrics["grade/responses_per_s"] > 0
    assert json.loads((broken / "run.json").read_text())["sandbox"]["level"].startswith("L")
    samples = [line for line in lines(broken, "samples.jsonl") if line["step"] == 2]
    assert len(samples) == 8
    assert {line["status"] for line in samples} == {"infra_error"}
    assert {line["reward"] for line in samples} == {None}
    resumed = programs.run("-m", "sdpo.main_sdpo", *settings)
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    assert [line["step"] for line in lines(broken, "metrics.jsonl") if line["step"]] == [1, 2]
    graded = [line for line in lines(broken, "samples.jsonl") if line["step"] == 2 and line["phase"] == "train"]
    assert len(graded) == 8
    assert all(line["status"] != "infra_error" for line in graded)
    assert any(line["feedback"] for line in graded)
