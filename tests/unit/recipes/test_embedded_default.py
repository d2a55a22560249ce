"""The long runs of the embedded default: what is started, what is not started again, and the verdict on a run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from sdpo.config.compose import compose
from sdpo.config.validate import validate
from sdpo.models.load import resolve_model_path


def _script(repository: Path, name: str) -> ModuleType:
    file = repository / "recipes" / "benchmarks" / "embedded_default" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def long_runs(repository: Path) -> ModuleType:
    return _script(repository, "long_runs")


def _run(folder: Path, accuracies: list[float], status: str = "finished") -> None:
    folder.mkdir(parents=True)
    rows = [
        {"step": 20 * i, "time": 0.0, "val/avg@4": accuracy, "timing/elapsed_s": 10.0 * i, "train/samples": 128 * i}
        for i, accuracy in enumerate(accuracies)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    distillation = {"teacher_regularization": "ema", "teacher_update_rate": 0.05}
    actor = {"optim": {"lr": 1e-3}, "policy_loss": {"loss_mode": "sdpo"}, "self_distillation": distillation}
    config = {"data": {"seed": 3}, "actor_rollout_ref": {"actor": actor}}
    (folder / "resolved_config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps({"status": status}))


def test_every_setting_trains_its_own_weights_and_nothing_else_of_the_default(long_runs, tmp_path, caplog):
    default = compose([])
    for setting in long_runs.SETTINGS:
        words = long_runs.command(setting, 4, tmp_path / "run", 500, ["data.train_batch_size=8"])
        config = compose([word for word in words if "=" in word])
        validate(config)
        assert config.actor_rollout_ref.model.path == f"builtin://tiny/{setting}"
        assert (config.data.seed, config.trainer.seed, config.trainer.total_training_steps) == (4, 4, 500)
        assert config.data.train_batch_size == 8
        for part in ("optim", "self_distillation"):
            assert getattr(config.actor_rollout_ref.actor, part) == getattr(default.actor_rollout_ref.actor, part)
    assert "made for another task" not in caplog.text


def test_the_first_seed_of_every_setting_comes_first_and_what_is_finished_is_not_run_again(
    long_runs, tmp_path, monkeypatch, capsys
):
    _run(tmp_path / "easy-seed1", [0.1, 0.9])
    _run(tmp_path / "hard-seed1", [0.1], status="interrupted")  # goes on
    started = []

    class Done:
        returncode = 0

    def run(words, **_):
        started.append(words[-1].rpartition("/")[2])
        return Done

    monkeypatch.setattr(long_runs.subprocess, "run", run)
    told = ["--out", str(tmp_path), "--seeds", "1,2", "--settings", "easy,hard", "--steps", "20"]
    assert long_runs.main(told) == 0
    assert started == ["hard-seed1", "easy-seed2", "hard-seed2"]
    (line,) = (tmp_path / "cells.jsonl").read_text().splitlines()
    assert json.loads(line)["accuracies"] == [[0, 0.1], [20, 0.9]]
    assert "| easy | 1 |" in capsys.readouterr().out


def test_a_run_that_ends_more_than_two_hundredths_below_its_best_is_said(long_runs, tmp_path):
    _run(tmp_path / "hard-seed3", [0.1, 0.97, 0.95])
    _run(tmp_path / "easy-seed3", [0.1, 0.97, 0.94])
    held, fell = (long_runs.cell(tmp_path / f"{setting}-seed3") for setting in ("hard", "easy"))
    assert (held["best"], held["best_step"], held["last"], held["below_best"]) == (0.97, 20, 0.95, 0.02)
    lines = long_runs.table([held, fell]).splitlines()[2:]
    assert "below" not in lines[0] and "0.030 below its best" in lines[1]


def test_a_reading_knows_a_model_that_needs_to_be_shown_the_solution(repository):
    reading = _script(repository, "teacher_reading")
    folder = resolve_model_path("builtin://tiny/unseen")
    texts = reading.contexts(AutoTokenizer.from_pretrained(folder), 20)
    found = reading.measure(AutoModelForCausalLM.from_pretrained(folder).eval(), texts)
    assert found["direct"] < 0.05 and min(found["solution"], found["feedback"]) > 0.7
    assert found["solution_entropy"] < found["direct_entropy"]
