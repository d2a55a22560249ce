"""What is decided before the workers start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpo.config.compose import compose
from sdpo.errors import CheckpointError, ConfigError
from sdpo.training import checkpoint
from sdpo.training.checkpoint import TrainerState
from sdpo.training.run import find_resume, optimizer_steps, train


def _config(*overrides: str):
    return compose(["cluster=inline", "actor_rollout_ref.rollout.name=hf", *overrides], "sdpo")


def _checkpoint(run: Path, step: int) -> Path:
    return checkpoint.save(run / "checkpoints", TrainerState(step, step, 8), lambda folder: Path(folder).mkdir(), None)


def test_auto_resumes_from_the_newest_complete_checkpoint_of_the_run_folder(tmp_path):
    config = _config(f"trainer.default_local_dir={tmp_path}")
    assert find_resume(config) is None
    _checkpoint(tmp_path, 9)
    newest = _checkpoint(tmp_path, 10)
    (tmp_path / "checkpoints" / "step_11").mkdir()
    assert find_resume(config) == newest
    assert find_resume(_config(f"trainer.default_local_dir={tmp_path}", "trainer.resume_mode=disable")) is None


def test_a_named_checkpoint_must_be_complete(tmp_path):
    older = _checkpoint(tmp_path, 9)
    _checkpoint(tmp_path, 10)
    config = _config("trainer.resume_mode=resume_path", f"trainer.resume_from_path={older}")
    assert find_resume(config) == older
    (older / checkpoint.MARKER).unlink()
    with pytest.raises(CheckpointError, match="unfinished"):
        find_resume(config)


def test_a_finished_run_says_so_and_touches_nothing(tmp_path, capsys):
    _checkpoint(tmp_path, 40)
    before = sorted(tmp_path.rglob("*"))
    assert train(_config(f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=40")) == 0
    assert "complete: step 40 of 40" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_the_schedule_counts_every_optimizer_step():
    config = _config("data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=8")
    config.actor_rollout_ref.actor.ppo_epochs = 2
    assert optimizer_steps(config, 10) == 10 * 4 * 2


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="default_local_dir"):
        train(_config(f"trainer.default_local_dir={tmp_path}/file/run"))
