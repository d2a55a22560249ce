"""kill -9 in the middle of anything; the resumed run ends with the weights of an unbroken one, bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
COMMAND = [
    "cluster=inline",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2",
    "data.train_max_samples=4",  # two steps an epoch: step 3 begins the second one
    "data.val_max_samples=4",
    "trainer.val_before_train=false",
    "trainer.total_training_steps=4",
    "trainer.save_freq=1",
    "trainer.test_freq=1",
    "trainer.max_actor_ckpt_to_keep=2",
]


def _run(folder: Path, *, die_in: str | None = None) -> int:
    program = (
        [sys.executable, "-m", "sdpo.main_sdpo"]
        if die_in is None
        else [sys.executable, str(HERE / "die_in_phase.py"), die_in]
    )
    return subprocess.run([*program, *COMMAND, f"trainer.default_local_dir={folder}"], timeout=280).returncode


def _weights(folder: Path) -> list[bytes]:
    """Of the last step and of the best one, and which that was."""
    files = ("model/model.safetensors", "model_best/model.safetensors", "model_best/best.json")
    return [(folder / file).read_bytes() for file in files]


def _steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    assert _run(folder) == 0
    return folder


@pytest.mark.parametrize("phase", ["rollout", "update", "save"])
def test_a_run_killed_in_the_middle_of_a_phase_ends_like_an_unbroken_one(unbroken, tmp_path, phase):
    assert _run(tmp_path, die_in=phase) == -signal.SIGKILL
    complete = sorted(
        p.parent.name for p in tmp_path.glob("checkpoints/*/COMPLETE") if not p.parent.name.startswith(".")
    )
    assert complete == ["step_1", "step_2"]
    assert _run(tmp_path) == 0
    assert _weights(tmp_path) == _weights(unbroken)
    assert _steps(tmp_path) == _steps(unbroken) == [1, 2, 3, 4]
    assert [p.name for p in sorted(tmp_path.glob("checkpoints/step_*"))] == ["step_3", "step_4"]

    def responses(folder: Path) -> list[tuple]:
        lines = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
        return [(r["step"], r["phase"], r["uid"], r["index"], r["response"], r["policy_version"]) for r in lines]

    assert responses(tmp_path) == responses(unbroken)
