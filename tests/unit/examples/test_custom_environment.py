from __future__ import annotations

import json
from pathlib import Path

SMALL = [
    "cluster=inline",
    "actor_rollout_ref.rollout.name=hf",
    "trainer.total_training_steps=1",
    "trainer.test_freq=0",
    "trainer.val_before_train=false",
    "trainer.save_freq=0",
    "trainer.log_samples=-1",
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
]


def test_a_wrong_answer_gets_a_second_try_and_a_hint_of_its_own(programs, repository: Path, tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(repository)}
    done = programs.run(repository / "examples/custom_environment.py", *SMALL, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs/custom_environment"
    (metrics,) = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    samples = [*map(json.loads, (run / "samples.jsonl").read_text().splitlines())]
    several = [sample for sample in samples if "turns" in sample]
    assert 0 < len(several) < len(samples) == 16
    assert metrics["rollout/turns"] == 1 + len(several) / 16 and metrics["rollout/forks"] == 0
    assert metrics["sdpo/signal_frac"] > 0 and metrics["actor/optimizer_steps"] == 1
    for sample in several:
        first, second = sample["turns"]
        assert second["said"] == [{"role": "user", "content": first["feedback"]}]
        assert first["feedback"] in sample["teacher_prompt"] and sample["response"] == second["text"]
    alike = [sample for sample in samples if "turns" not in sample]
    assert all(sample["reward"] == 1.0 for sample in alike)
