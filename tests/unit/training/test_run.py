"""What is decided before the workers start."""

from __future__ import annotations

from pathlib import Path

import pytest

from sdpo.config.compose import compose
from sdpo.errors import CheckpointError, ConfigError
from sdpo.training import checkpoint
from sdpo.training.checkpoint import TrainerState
from sdpo.training.run import check_context, train
from sdpo.training.run_folder import find_resume


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
    (tmp_path / "model").mkdir()
    before = {*tmp_path.rglob("*")}
    assert train(_config(f"trainer.default_local_dir={tmp_path}", "trainer.total_training_steps=40")) == 0
    assert "complete: it is at step 40" in capsys.readouterr().out
    assert {*tmp_path.rglob("*")} - before <= {tmp_path / ".lock"}


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("data.max_response_length=2048", "data.max_response_length"),
        ("data.max_response_length=2000", "data.max_prompt_length"),
        ("actor_rollout_ref.actor.self_distillation.max_reprompt_len=2040", "max_reprompt_len"),
    ],
)
def test_sequences_longer_than_the_models_positions_are_refused(override, field):
    with pytest.raises(ConfigError, match=field):
        check_context(_config(override))


def test_without_a_teacher_the_reprompt_does_not_count():
    check_context(
        _config(
            "actor_rollout_ref.actor.self_distillation.max_reprompt_len=2040",
            "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla",
        )
    )


def test_a_start_that_fails_leaves_the_record_of_the_earlier_run(tmp_path, monkeypatch):
    from sdpo.training import run

    def no_workers(*_):
        raise ConfigError("no workers")

    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "report.html").write_text("good")
    (tmp_path / "run.json").write_text("{}")
    monkeypatch.setattr(run, "start_workers", no_workers)
    with pytest.raises(ConfigError, match="no workers"):
        train(_config(f"trainer.default_local_dir={tmp_path}"))
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "metrics.jsonl", "report.html", "run.json"]
