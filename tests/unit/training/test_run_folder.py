"""One run folder, one run: the lock, what a new run puts aside, what a resumed run may change."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from sdpo.config.compose import compose, to_yaml
from sdpo.errors import CheckpointError, ConfigError
from sdpo.training import checkpoint, run_folder
from sdpo.training.checkpoint import TrainerState

LR = "actor_rollout_ref.actor.optim.lr"


def _config(*overrides: str):
    return compose(["cluster=inline", "actor_rollout_ref.rollout.name=hf", *overrides], "sdpo")


def _checkpoint(run: Path, step: int, config_yaml: str = "") -> Path:
    root = run / run_folder.CHECKPOINTS
    return checkpoint.save(root, TrainerState(step, step, 8), lambda folder: Path(folder).mkdir(), None, config_yaml)


def _old_run(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1}\n')
    (run / "run.json").write_text("{}")
    for name in ("model", "model_best"):
        (run / name).mkdir(exist_ok=True)
    (run / "report.html").write_text("old")
    (run / "notes.txt").write_text("mine")
    _checkpoint(run, 5)


def test_a_second_process_cannot_enter_a_folder_in_use_and_can_when_the_first_has_died(tmp_path):
    program = (
        "import sys, pathlib, time; from sdpo.training.run_folder import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    print('in', flush=True); time.sleep(60)"
    )
    first = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert first.stdout.readline() == b"in\n"
    with pytest.raises(ConfigError, match="no other run is using"), run_folder.locked(tmp_path):
        pass
    first.kill()
    first.wait()
    with run_folder.locked(tmp_path):
        pass


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def without(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "flock", without)
    with pytest.raises(ConfigError, match="with file locks; flock: No locks"), run_folder.locked(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="default_local_dir"), run_folder.locked(tmp_path / "file" / "run"):
        pass


def test_a_fresh_run_moves_an_earlier_one_away_whole_and_leaves_other_files(tmp_path):
    _old_run(tmp_path)
    assert run_folder.put_aside(tmp_path, None) == tmp_path / "earlier" / "1"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["earlier", "notes.txt"]
    assert (tmp_path / "earlier/1/metrics.jsonl").read_text() == '{"step": 1}\n'
    assert checkpoint.latest(tmp_path / "earlier/1/checkpoints").name == "step_5"
    _old_run(tmp_path)
    assert run_folder.put_aside(tmp_path, None) == tmp_path / "earlier" / "2"
    assert run_folder.put_aside(tmp_path, None) is None


def test_after_disable_neither_resume_nor_pruning_sees_the_old_checkpoints(tmp_path):
    _old_run(tmp_path)
    config = _config(f"trainer.default_local_dir={tmp_path}", "trainer.resume_mode=disable")
    run_folder.put_aside(tmp_path, run_folder.find_resume(config))
    new = _checkpoint(tmp_path, 2)
    checkpoint.prune(tmp_path / "checkpoints", 1)
    assert run_folder.find_resume(_config(f"trainer.default_local_dir={tmp_path}")) == new


def test_going_back_to_an_older_checkpoint_moves_the_newer_ones_away(tmp_path):
    older, newer = _checkpoint(tmp_path, 4), _checkpoint(tmp_path, 10)
    _old_run(tmp_path)
    assert run_folder.put_aside(tmp_path, older) == tmp_path / "earlier" / "1"
    assert older.is_dir() and not newer.exists()
    assert not (tmp_path / "model").exists() and not (tmp_path / "model_best").exists()
    assert (tmp_path / "earlier/1/model_best").is_dir()
    assert (tmp_path / "earlier/1/checkpoints/step_10" / checkpoint.MARKER).exists()
    log, copy = tmp_path / "metrics.jsonl", tmp_path / "earlier/1/metrics.jsonl"
    assert log.read_text() == copy.read_text() == '{"step": 1}\n'
    _checkpoint(tmp_path, 5)
    renamed = older.rename(older.with_name("best"))  # any name will do
    assert run_folder.put_aside(tmp_path, renamed) == tmp_path / "earlier" / "2"


def test_things_that_are_not_a_runs_are_never_moved(tmp_path):
    (tmp_path / "model").mkdir()
    config = _config(f"trainer.default_local_dir={tmp_path}")
    with pytest.raises(ConfigError, match="model there are no run's"):
        run_folder.check_contents(config)
    (tmp_path / "run.json").write_text("{}")
    run_folder.check_contents(config)
    for key in ("path", "tokenizer_path", "lora_adapter_path"):
        own = _config(f"trainer.default_local_dir={tmp_path}", f"actor_rollout_ref.model.{key}={tmp_path}/model")
        with pytest.raises(ConfigError, match=f"model.{key}: .* outside of the run's"):
            run_folder.check_contents(own)


@pytest.mark.parametrize("model", ["builtin://tiny/hard", "gpt2", "base"])
def test_the_current_folder_may_be_the_run_folder(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()  # a model of the user's: never moved
    run_folder.check_contents(_config("trainer.default_local_dir=.", f"actor_rollout_ref.model.path={model}"))


def test_a_run_without_its_model_is_not_complete(tmp_path, capsys):
    _old_run(tmp_path)
    config = _config(f"trainer.default_local_dir={tmp_path}")
    assert run_folder.is_complete(config, 5) and not run_folder.is_complete(config, 6)
    (tmp_path / "model").rmdir()
    assert not run_folder.is_complete(config, 5)
    config.trainer.export_hf = False
    assert run_folder.is_complete(config, 5)
    assert "at step 5, trainer.total_training_steps is 5" in capsys.readouterr().out


def test_changed_settings_are_refused_before_a_run_is_called_complete(tmp_path):
    _old_run(tmp_path)
    _checkpoint(tmp_path, 6, to_yaml(_config()))
    with pytest.raises(CheckpointError, match=r"model\.path"):
        run_folder.is_complete(_config(f"trainer.default_local_dir={tmp_path}", "model=tiny_easy"), 6)


def test_starting_from_another_runs_checkpoint_keeps_nothing_of_the_folder(tmp_path):
    (tmp_path / "here").mkdir()
    _old_run(tmp_path / "here")
    resume = _checkpoint(tmp_path / "there", 3)
    run_folder.put_aside(tmp_path / "here", resume)
    assert checkpoint.complete(tmp_path / "here" / "checkpoints") == []
    assert resume.is_dir()


def test_changed_settings_are_told_and_those_of_the_machine_are_not(tmp_path):
    resume = _checkpoint(tmp_path, 3, to_yaml(_config()))
    assert run_folder.changes(_config("trainer.total_training_steps=99", "grading.workers=1"), resume) == []
    (told,) = run_folder.changes(_config(f"{LR}=2e-3"), resume)
    assert told == f"{LR}: 0.0005 -> 0.002"


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.model.path=builtin://tiny/easy",
        "actor_rollout_ref.model.override_config={rope_theta: 5}",
        "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla",
    ],
)
def test_what_the_weights_do_not_survive_is_refused(tmp_path, override):
    resume = _checkpoint(tmp_path, 3, to_yaml(_config()))
    with pytest.raises(CheckpointError, match=override.partition("=")[0]):
        run_folder.changes(_config(override), resume)


def test_a_checkpoint_of_other_settings_than_this_versions_is_said(tmp_path):
    resume = _checkpoint(tmp_path, 3, "trainer: {no_such_key: 1}")
    (told,) = run_folder.changes(_config(), resume)
    assert "no_such_key" in told and "not compared" in told
    (resume / checkpoint.CONFIG).write_bytes(b"\xff\xfe\x00")
    (told,) = run_folder.changes(_config(), resume)
    assert "not compared" in told
    (resume / checkpoint.CONFIG).write_bytes(b"")
    assert run_folder.changes(_config(), resume) == []


def test_a_damaged_checkpoint_has_a_way_out(tmp_path):
    _checkpoint(tmp_path, 9)
    assert "step_9" in run_folder.way_out(_checkpoint(tmp_path, 10))
    assert "resume_mode=disable" in run_folder.way_out(_checkpoint(tmp_path / "only", 1))
