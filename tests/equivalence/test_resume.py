"""kill -9 or Ctrl-C in the middle of anything; the resumed run ends with the weights of an unbroken one, bit by bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sdpo.tracking.history import RunHistory

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


@pytest.fixture(scope="module")
def run(programs):
    def start(folder: Path, *more: str, die_in: tuple[str, str] | None = None) -> subprocess.CompletedProcess:
        """die_in: phase and signal."""
        program = ["-m", "sdpo.main_sdpo"] if die_in is None else [HERE / "die_in_phase.py", *die_in]
        return programs.run(*program, *COMMAND, f"trainer.default_local_dir={folder}", *more)

    return start


def _weights(folder: Path) -> list[bytes]:
    """Of the last step and of the best one, and which that was."""
    files = ("model/model.safetensors", "model_best/model.safetensors", "model_best/best.json")
    return [(folder / file).read_bytes() for file in files]


def _steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    """By an interpreter of its own: nothing may depend on the order of sets that forks have in common."""
    folder = tmp_path_factory.mktemp("unbroken")
    words = [sys.executable, "-m", "sdpo.main_sdpo", *COMMAND, f"trainer.default_local_dir={folder}"]
    subprocess.run(words, timeout=280, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("phase", ["rollout", "update", "save"])
def test_a_run_killed_in_the_middle_of_a_phase_ends_like_an_unbroken_one(run, unbroken, tmp_path, phase):
    assert run(tmp_path, die_in=(phase, "SIGKILL")).returncode == -signal.SIGKILL
    assert _complete(tmp_path) == ["step_1", "step_2"]
    assert run(tmp_path).returncode == 0
    assert _weights(tmp_path) == _weights(unbroken)
    assert _steps(tmp_path) == _steps(unbroken) == [1, 2, 3, 4]
    assert [p.name for p in sorted(tmp_path.glob("checkpoints/step_*"))] == ["step_3", "step_4"]

    assert _responses(tmp_path) == _responses(unbroken)


def _complete(folder: Path) -> list[str]:
    names = (path.parent.name for path in folder.glob("checkpoints/*/COMPLETE"))
    return sorted(name for name in names if not name.startswith("."))


def _responses(folder: Path) -> list[tuple]:
    lines = map(json.loads, (folder / "samples.jsonl").read_text().splitlines())
    return [(r["step"], r["phase"], r["uid"], r["index"], r["response"], r["policy_version"]) for r in lines]


def _accuracies(folder: Path) -> list[tuple[int, float]]:
    history = RunHistory.load(folder)
    return history.series(history.validation_name)


@pytest.mark.parametrize(("phase", "name", "kept"), [("rollout", "SIGINT", 2), ("validate", "SIGTERM", 3)])
def test_what_was_trained_before_a_signal_is_kept_without_a_checkpoint_before_it(
    run, unbroken, tmp_path, phase, name, kept
):
    """`save_freq=-1`, the default, writes checkpoints at the end only."""
    stopped = run(tmp_path, "trainer.save_freq=-1", die_in=(phase, name))
    assert stopped.returncode == 128 + signal.Signals[name]
    word = "interrupted" if name == "SIGINT" else "terminated"
    (line,) = [line for line in stopped.stderr.splitlines() if not line.startswith("WARNING")]
    assert line == f"{word}; the same command goes on after step {kept}"
    assert _complete(tmp_path) == [f"step_{kept}"]
    resumed = run(tmp_path, "trainer.save_freq=-1")
    assert resumed.returncode == 0 and f"resuming after step {kept}" in resumed.stdout
    assert _weights(tmp_path) == _weights(unbroken)
    assert _responses(tmp_path) == _responses(unbroken)
    assert _accuracies(tmp_path) == _accuracies(unbroken)


@pytest.mark.slow
@pytest.mark.parametrize("die_in", [("update", "SIGKILL"), ("rollout", "SIGINT")])
def test_a_run_one_step_off_ends_like_an_unbroken_one_too(run, tmp_path, die_in):
    """The samples of step 3 were drawn by weights that are gone when step 2 is taken up."""
    one_off = "actor_rollout_ref.rollout.max_staleness=1"
    assert run(tmp_path / "unbroken", one_off).returncode == 0
    assert run(tmp_path / "stopped", one_off, die_in=die_in).returncode != 0
    assert run(tmp_path / "stopped", one_off).returncode == 0
    assert _weights(tmp_path / "stopped") == _weights(tmp_path / "unbroken")
    assert _responses(tmp_path / "stopped") == _responses(tmp_path / "unbroken")
    metrics = [json.loads(line) for line in (tmp_path / "stopped/metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/staleness"] for line in metrics] == [0, 1, 1, 1]


@pytest.mark.slow
def test_a_killed_run_of_an_adapter_with_dropout_and_an_averaged_teacher_ends_like_an_unbroken_one_too(run, tmp_path):
    adapter = [
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.model.lora_dropout=0.1",
        "actor_rollout_ref.actor.optim.lr=5e-3",
        "actor_rollout_ref.actor.self_distillation.teacher_regularization=ema",
    ]
    assert run(tmp_path / "unbroken", *adapter).returncode == 0
    assert run(tmp_path / "killed", *adapter, die_in=("update", "SIGKILL")).returncode == -signal.SIGKILL
    assert run(tmp_path / "killed", *adapter).returncode == 0
    assert _responses(tmp_path / "killed") == _responses(tmp_path / "unbroken")
    for file in ("model/adapter_model.safetensors", "model_best/adapter_model.safetensors"):
        assert (tmp_path / "killed" / file).read_bytes() == (tmp_path / "unbroken" / file).read_bytes()
