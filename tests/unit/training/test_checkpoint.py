"""Checkpoint folders: atomic, ordered by number, pruned only when newer ones are complete."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sdpo.errors import CheckpointError
from sdpo.training import checkpoint
from sdpo.training.checkpoint import TrainerState


def _write(folder: str) -> None:
    Path(folder).mkdir()
    (Path(folder) / "shard").write_text("weights")


def _save(root: Path, step: int, keep: int | None = None, write=_write) -> Path:
    return checkpoint.save(root, TrainerState(step, step, step * 8), write, keep)


def test_latest_is_by_number_not_by_text_and_ignores_unfinished_folders(tmp_path):
    for step in (9, 100, 10):
        _save(tmp_path, step)
    (tmp_path / "step_tmp").mkdir()
    (tmp_path / "step_200").mkdir()  # no marker: a save that never ended
    assert checkpoint.latest(tmp_path).name == "step_100"


def test_state_round_trips(tmp_path):
    assert checkpoint.read_state(_save(tmp_path, 7)) == TrainerState(7, 7, 56)


@pytest.mark.parametrize("keep", [-1, 0, None])
def test_keep_all_deletes_nothing(tmp_path, keep):
    for step in (9, 10, 100):
        _save(tmp_path, step, keep)
    (tmp_path / "step_tmp").mkdir()
    checkpoint.prune(tmp_path, keep)
    assert len(list(tmp_path.iterdir())) == 4


def test_keep_one_removes_the_old_one_only_after_the_new_one_is_complete(tmp_path):
    old = _save(tmp_path, 1, keep=1)

    def full_disk(folder: str) -> None:
        Path(folder).mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        _save(tmp_path, 2, keep=1, write=full_disk)
    assert checkpoint.latest(tmp_path) == old
    assert (old / "actor" / "shard").read_text() == "weights"
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]
    _save(tmp_path, 3, keep=1)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step_3"]


def test_checkpoints_of_before_a_resume_count_towards_the_limit(tmp_path):
    for step in (1, 2, 3):
        _save(tmp_path, step)
    _save(tmp_path, 4, keep=2)
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["step_3", "step_4"]


@pytest.mark.parametrize("damage", ["missing", "no marker", "bad json", "a step that is no number", "no best"])
def test_an_unusable_checkpoint_is_a_checkpoint_error(tmp_path, damage):
    folder = _save(tmp_path, 1)
    if damage == "missing":
        folder = tmp_path / "step_5"
    elif damage == "no marker":
        (folder / checkpoint.MARKER).unlink()
    elif damage == "bad json":
        (folder / checkpoint.STATE).write_text("{")
    elif damage == "no best":
        (folder / checkpoint.STATE).write_text('{"step": 3, "policy_version": 3, "samples": 8, "best": [1]}')
    else:
        (folder / checkpoint.STATE).write_text('{"step": "3", "policy_version": 3, "samples": 8}')
    with pytest.raises(CheckpointError, match=folder.name):
        checkpoint.read_state(folder)
