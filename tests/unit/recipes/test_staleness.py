from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from sdpo.config.compose import compose
from sdpo.config.validate import validate


@pytest.fixture(scope="module")
def staleness():
    path = Path(__file__).parents[3] / "recipes/benchmarks/staleness.py"
    spec = importlib.util.spec_from_file_location("staleness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_run(folder: Path, seconds: float, accuracy: float, status: str = "finished") -> None:
    folder.mkdir(parents=True)
    rows = [
        {"step": step, "train/samples": 8 * step, "rollout/staleness": 1.0, "val/avg@4": accuracy * step / 4}
        | {"timing/rollout_s": seconds * (100 if step < 3 else 1), "timing/update_s": 1.0, "timing/sync_s": 0.25}
        for step in range(1, 5)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.json").write_text(json.dumps({"status": status}))


def test_the_two_kinds_of_run_differ_in_nothing_but_the_setting(staleness, tmp_path):
    commands = [staleness.command(3, kind, tmp_path / "run", 40, ["data.max_response_length=40"]) for kind in (0, 1)]
    configs = [compose(words[3:]) for words in commands]
    for kind, config in enumerate(configs):
        validate(config)
        assert (config.actor_rollout_ref.rollout.max_staleness, config.data.seed) == (kind, 3)
        config.actor_rollout_ref.rollout.max_staleness = 0
    assert configs[0] == configs[1]


def test_times_leave_the_first_steps_out_and_means_the_unfinished_runs(staleness, tmp_path):
    write_run(tmp_path / "staleness0-seed0", 2.0, 0.8)
    write_run(tmp_path / "staleness0-seed1", 4.0, 0.6)
    write_run(tmp_path / "staleness1-seed0", 0.5, 0.8)
    write_run(tmp_path / "staleness1-seed1", 9.0, 0.1, "running")
    found = staleness.summary(tmp_path)
    assert [run["seconds_per_step"] for run in found["runs"]] == [3.25, 5.25, 1.75, 10.25]
    means = found["means"]["max_staleness=0"]
    assert means["seconds_per_step"] == 4.25 and means["accuracy_last"] == pytest.approx(0.7) and means["runs"] == 2
    assert found["means"]["max_staleness=1"]["runs"] == 1


def test_what_is_finished_is_not_run_again(staleness, tmp_path, monkeypatch, capsys):
    for kind in (0, 1):
        write_run(tmp_path / f"staleness{kind}-seed0", 2.0, 0.8)
    monkeypatch.setattr(staleness.subprocess, "run", lambda *_, **__: pytest.fail("it ran"))
    assert staleness.main(["--out", str(tmp_path), "--seeds", "0", "--steps", "4"]) == 0
    assert json.loads((tmp_path / "results.json").read_text())["means"]["max_staleness=1"]["accuracy_last"] == 0.8
