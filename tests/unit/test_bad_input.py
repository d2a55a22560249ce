"""What a person can get wrong ends in one line that names it and an exit code, before a model is loaded."""

from __future__ import annotations

import json

import pytest

from sdpo.main_sdpo import main

ROW = {"data_source": "gsm8k", "prompt": "2+2?", "reward_model": {"ground_truth": "4"}}
INLINE = ["cluster=inline", "actor_rollout_ref.rollout.name=hf"]


@pytest.fixture
def refusal(capsys, tmp_path, monkeypatch):
    """Runs a command line that must be refused; returns its one line."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        code = main([*INLINE, *arguments])
        lines = capsys.readouterr().err.strip().splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert code != 0 and len(errors) == 1, lines
        assert not any("Traceback" in line for line in lines)
        return errors[0]

    return run


def _file(tmp_path, *rows: dict) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_missing_model_path(refusal):
    assert "/no/such/model" in refusal("actor_rollout_ref.model.path=/no/such/model")


def test_empty_data_file(refusal, tmp_path):
    path = _file(tmp_path)
    assert path in refusal(f"data.train_files=[{path}]")


def test_row_without_a_prompt(refusal, tmp_path):
    path = _file(tmp_path, ROW, {"data_source": "gsm8k", "reward_model": {"ground_truth": "4"}})
    line = refusal("model=tiny_hard", f"data.train_files=[{path}]")
    assert path in line and "row 2" in line and "prompt" in line


def test_row_of_a_source_nobody_grades(refusal, tmp_path):
    path = _file(tmp_path, ROW | {"data_source": "astrology"})
    line = refusal(
        "model=tiny_hard",
        f"data.train_files=[{path}]",
        "data.train_batch_size=1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=1",
    )
    assert "astrology" in line and "gsm8k" in line


def test_batch_that_does_not_divide(refusal):
    line = refusal("data.train_batch_size=5", "actor_rollout_ref.actor.ppo_mini_batch_size=4")
    assert "5" in line and "4" in line


@pytest.mark.parametrize("alpha", ["-0.1", "1.5", "half"])
def test_alpha_outside_of_its_range(refusal, alpha):
    assert "alpha" in refusal(f"actor_rollout_ref.actor.self_distillation.alpha={alpha}")


def test_a_live_teacher_elsewhere(refusal):
    live = "actor_rollout_ref.actor.self_distillation.teacher_regularization=live"
    assert "colocated" in refusal("actor_rollout_ref.ref.placement=remote", live)


def test_unknown_task(refusal):
    line = refusal("task=sudoku")
    assert "sudoku" in line and "programs_hard" in line


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("actor_rollout_ref.actor.optim.learning_rte", "actor_rollout_ref.actor.optim.lr"),
        ("data.trian_batch_size", "data.train_batch_size"),
    ],
)
def test_misspelt_keys_are_answered_with_the_nearest_one(refusal, key, nearest):
    line = refusal(f"{key}=1")
    assert key in line and nearest in line


def test_unreadable_checkpoint(refusal, tmp_path):
    folder = tmp_path / "step_7"
    folder.mkdir()
    line = refusal("trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}")
    assert "step_7" in line and "unfinished" in line


def test_text_that_is_not_unicode(refusal, tmp_path):
    path = _file(tmp_path, ROW | {"prompt": "2+2? \ud83d"})
    line = refusal("model=tiny_hard", f"data.train_files=[{path}]")
    assert "row 1" in line and "surrogate" in line
