"""The launcher: the same settings for every arm, an end at the budget, nothing run twice."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sdpo.errors import ConfigError, DataError, SdpoError
from sdpo.reporting.comparison import launch
from sdpo.reporting.comparison.curves import Budget, load_curve
from sdpo.reporting.comparison.launch import Arm, Plan, Trial
from sdpo.tracking.history import RunHistory

# Stands in for a training run: a validation of one second of training and ten samples every 50 ms. After ten of them,
# more than any budget here, it waits to be interrupted.
RUN = """
import json, os, pathlib, sys, time, yaml
given = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
folder = pathlib.Path(given["trainer.default_local_dir"])
rate, seed = float(given.get("actor_rollout_ref.actor.optim.lr", 1e-3)), int(given["data.seed"])
if given.get("fail"):
    sys.exit("no such luck")
(folder / "pid").write_text(str(os.getpid()))
(folder / "resolved_config.yaml").write_text(yaml.safe_dump({
    "data": {"seed": seed}, "trainer": {"group_name": given.get("trainer.group_name")},
    "actor_rollout_ref": {"actor": {"optim": {"lr": rate}, "policy_loss": {"loss_mode": sys.argv[1]}}}}))
with (folder / "metrics.jsonl").open("w") as file:
    for step in range(int(given["trainer.total_training_steps"])):
        row = {"step": step, "val/avg@4": min(1.0, step * rate), "timing/elapsed_s": float(step)}
        row["train/samples"] = 10 * step
        if given.get("sources"):
            row |= {f"val/{name}/avg@4": 0.5 for name in given["sources"]}
        file.write(json.dumps(row) + "\\n")
        file.flush()
        time.sleep(0.05 if step < 10 else 600)
(folder / "run.json").write_text('{"status": "finished"}')
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    script = tmp_path / "run.py"
    script.write_text(RUN)
    real = launch.command

    def command(plan: Plan, trial: Trial, folder: Path) -> list[str]:
        given = [a for a in real(plan, trial, folder) if "=" in a]
        return [sys.executable, str(script), {"sdpo": "sdpo", "baseline_grpo": "vanilla"}[trial.arm.root], *given]

    monkeypatch.setattr(launch, "command", command)
    monkeypatch.setattr(launch, "POLL_S", 0.02)

    def make(budget: Budget, **changes) -> Plan:
        arms = changes.pop("arms", (Arm("sdpo"), Arm("baseline_grpo")))
        values = {"overrides": (), "seeds": (0, 1), "rates": (), "out": tmp_path, "say": lambda text: None} | changes
        return Plan(arms=arms, budget=budget, **values)

    return make


def test_a_run_ends_at_the_first_validation_that_has_spent_the_budget(plan):
    folders, _ = launch.run_all(plan(Budget(seconds=3, samples=40), seeds=(0,)))
    assert [f.name for f in folders] == ["sdpo-seed0", "baseline_grpo-seed0"]
    for folder in folders:
        end = load_curve(folder).points[-1]
        assert end.samples >= 40 and end.seconds <= 10


def test_a_single_held_out_source_is_the_one_that_counts(plan):
    (folder,), _ = launch.run_all(plan(Budget(seconds=2), arms=(Arm("sdpo"),), seeds=(0,), source="task"))
    assert load_curve(folder, "task").metric == "val/avg@4"


def test_a_run_without_the_source_that_counts_is_stopped_instead_of_going_on_for_ever(plan):
    with pytest.raises(DataError, match="no held-out accuracy on task"):
        launch.run_all(plan(Budget(seconds=2), overrides=("sources=ab",), source="task"))


def _terminate_when_there(metrics: Path) -> None:
    for _ in range(3000):
        if metrics.exists() and metrics.stat().st_size:
            return os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.02)


def test_an_interrupted_comparison_leaves_no_run_behind(plan, tmp_path):
    """Started as a shell starts a background job, SIGINT ignored, and ended by SIGTERM."""
    waiting = plan(Budget(seconds=1e9), seeds=(0,), overrides=("trainer.total_training_steps=100000",))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    metrics = tmp_path / "runs" / "sdpo-seed0" / "metrics.jsonl"
    ended = threading.Thread(target=_terminate_when_there, args=(metrics,))
    ended.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            launch.run_all(waiting)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ended.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(metrics.with_name("pid").read_text()), 0)
    assert not (tmp_path / "runs" / "baseline_grpo-seed0").exists()


def test_the_grid_runs_on_a_seed_and_problems_of_its_own_and_the_best_rate_on_the_reported_seeds(plan, tmp_path):
    own = {"tuning_seed": 7, "tuning": ("data.val_files=[other.jsonl]",)}
    given = plan(Budget(seconds=2), rates=("1e-2", "1e-1"), overrides=("data.val_files=[test.jsonl]",), **own)
    folders, tuning = launch.run_all(given)
    roots = ("sdpo", "baseline_grpo")
    assert sorted(f.name for f in folders) == sorted(f"{root}-lr1e-1-seed{seed}" for root in roots for seed in (0, 1))
    assert sorted(f.name for f in tuning) == sorted(f"{root}-lr{r}-seed7" for root in roots for r in given.rates)
    assert {f.parent.name for f in folders} == {"runs"} and {f.parent.name for f in tuning} == {"tuning"}
    for folder in (*folders, *tuning):
        words = json.loads((folder.parent / f"{folder.name}.command.json").read_text())
        files = [word for word in words if word.startswith("data.val_files=")]
        assert files[-1] == f"data.val_files=[{'other' if folder in tuning else 'test'}.jsonl]"


def test_one_rate_needs_no_runs_to_choose_it(plan):
    assert launch.run_all(plan(Budget(seconds=1), rates=("1e-1",)))[1] == []


def test_what_is_there_is_not_run_again(plan, tmp_path):
    finished = plan(Budget(), overrides=("trainer.total_training_steps=2",))
    first = [(f / "metrics.jsonl").stat().st_mtime_ns for f in launch.run_all(finished)[0]]
    assert [(f / "metrics.jsonl").stat().st_mtime_ns for f in launch.run_all(finished)[0]] == first


def test_a_run_of_other_settings_is_not_taken_for_the_wanted_one(plan, tmp_path):
    steps = "trainer.total_training_steps=2"
    launch.run_all(plan(Budget(), overrides=(steps, "model=small")))
    for changed in (
        {"overrides": (steps, "model=large")},
        {"overrides": (steps,)},
        {"overrides": (steps, "model=small"), "arms": (Arm("baseline_grpo"), Arm("sdpo", ("alpha=0",)))},
    ):
        with pytest.raises(ConfigError, match="sdpo-seed0 holds a run of other settings .*give another --out"):
            launch.run_all(plan(Budget(), **changed))
    (tmp_path / "runs" / "sdpo-seed0.command.json").unlink()
    with pytest.raises(ConfigError, match="does not say which; give another --out"):
        launch.run_all(plan(Budget(), overrides=(steps, "model=small")))


def test_a_comparison_may_be_given_a_longer_budget_and_another_spelling_of_its_folder(plan, tmp_path, monkeypatch):
    short = plan(Budget(), overrides=("trainer.total_training_steps=2",))
    first = [(f / "metrics.jsonl").stat().st_mtime_ns for f in launch.run_all(short)[0]]
    monkeypatch.chdir(tmp_path)
    again = plan(Budget(seconds=1), overrides=("trainer.total_training_steps=3",), out=Path("."))
    assert [(f / "metrics.jsonl").stat().st_mtime_ns for f in launch.run_all(again)[0]] == first


def test_a_run_that_failed_before_its_first_line_is_tried_again_with_other_settings(plan):
    failing = plan(Budget(), overrides=("trainer.total_training_steps=2", "fail=1"))
    with pytest.raises(SdpoError, match="no such luck"):
        launch.run_all(failing)
    assert launch.run_all(plan(Budget(), overrides=("trainer.total_training_steps=2",)))


def test_arms_of_one_root_are_told_apart(plan):
    arms = [Arm.parse("sdpo:alpha=0,x=1"), Arm.parse("sdpo")]
    assert arms[0] == Arm("sdpo", ("alpha=0", "x=1"))
    folders, _ = launch.run_all(plan(Budget(), arms=arms, seeds=(0,), overrides=("trainer.total_training_steps=2",)))
    assert [load_curve(f).label for f in folders] == ["sdpo1", "sdpo2"]


def test_arms_of_one_root_with_hyphens_in_its_name_are_told_apart(tmp_path):
    plan = Plan((Arm("my-sdpo", ("x=1",)), Arm("my-sdpo")), (), (0,), (), Budget(seconds=1), tmp_path)
    words = [launch.command(plan, Trial(arm, "", 0), Path("F")) for arm in plan.arms]
    groups = [a for line in words for a in line if "group_name" in a]
    assert groups == ["trainer.group_name=my-sdpo1", "trainer.group_name=my-sdpo2"]


def test_a_look_at_a_running_run_reads_it_once(plan, tmp_path, monkeypatch):
    ((folder,), _) = launch.run_all(plan(Budget(seconds=2), arms=(Arm("sdpo"),), seeds=(0,)))
    read, load = [], RunHistory.load
    monkeypatch.setattr(RunHistory, "load", lambda where: read.append(where) or load(where))
    launch.run_all(plan(Budget(seconds=2), arms=(Arm("sdpo"),), seeds=(0,)))
    assert read == [folder]


def test_a_run_that_fails_is_an_error_with_its_last_words(plan):
    with pytest.raises(SdpoError, match="exit code 1: no such luck"):
        launch.run_all(plan(Budget(seconds=1), overrides=("fail=1",)))


def test_the_command_line_gives_every_arm_the_same_settings_and_no_checkpoints(tmp_path):
    plan = Plan((Arm("sdpo"), Arm("baseline_grpo", ("a=1",))), ("model=x",), (0,), (), Budget(seconds=1), tmp_path)
    first, second = (launch.command(plan, Trial(arm, "5e-4", 3), Path("F")) for arm in plan.arms)
    assert first[3:5] == ["--config-name", "sdpo"] and second[3:5] == ["--config-name", "baseline_grpo"]
    assert [a for a in second[5:] if a != "a=1"] == first[5:]
    for wanted in ("trainer.save_freq=0", "model=x", "actor_rollout_ref.actor.optim.lr=5e-4", "data.seed=3"):
        assert wanted in first
