"""The trackers themselves, without a network: W&B offline, TensorBoard, Trackio's local database."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import time
from pathlib import Path

import pytest

from sdpo.config.schema import Config
from sdpo.tracking import RunLog
from sdpo.tracking.console import RunConsole


def crash_after_step_14(run_dir: Path) -> None:
    """What a process does that is killed without warning."""
    log = RunLog(run_dir, tracked_config(), console=RunConsole(io.StringIO()))
    for step in range(1, 15):
        log.metrics(step, {"train/accuracy": step / 100, "loss": float("nan") if step == 3 else 1.0})
    time.sleep(0.5)  # the last line reaches the trackers' thread, not their disk
    os._exit(9)


def tracked_config() -> Config:
    config = Config()
    config.trainer.logger = ["wandb", "tensorboard"]
    return config


def wandb_records(path: Path) -> list:
    """Records of an offline run (LevelDB log format: blocks of 32 KiB, 7 bytes before each fragment)."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole, found = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the only, or the last, fragment of a record
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


def wandb_points(record) -> dict[str, float]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


@pytest.fixture(scope="module")
def resumed_run(programs, tmp_path_factory) -> Path:
    """Logged to step 14, killed, resumed from 10, logged to 20."""
    pytest.importorskip("wandb")
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        patch.delenv("WANDB_DIR", raising=False)
        patch.delenv("TENSORBOARD_DIR", raising=False)
        assert programs.run(__file__, run_dir).returncode == 9
        with RunLog(run_dir, tracked_config(), resume_step=10, console=RunConsole(io.StringIO())) as log:
            for step in range(11, 21):
                log.metrics(step, {"train/accuracy": step / 100, "loss": 1.0})
    return run_dir


def test_wandb_has_one_run_and_loses_no_point_over_a_resume(resumed_run):
    records = [r for path in sorted(resumed_run.glob("wandb/offline-run-*/*.wandb")) for r in wandb_records(path)]
    assert len({r.run.run_id for r in records if r.WhichOneof("record_type") == "run"}) == 1
    points = [wandb_points(r) for r in records if r.WhichOneof("record_type") == "history"]
    accuracy = {p["train/step"]: p["train/accuracy"] for p in points}
    assert accuracy == {step: step / 100 for step in range(1, 21)}
    assert all("loss" not in p for p in points if p["train/step"] == 3)


def test_wandb_draws_every_metric_over_the_training_step(resumed_run):
    path = sorted(resumed_run.glob("wandb/offline-run-*/*.wandb"))[-1]
    metrics = [r.metric for r in wandb_records(path) if r.WhichOneof("record_type") == "metric"]
    assert any(m.glob_name == "*" and m.step_metric == "train/step" for m in metrics)


def test_tensorboard_shows_each_step_once_after_a_resume(resumed_run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(resumed_run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/accuracy")] == list(range(1, 21))


def test_the_local_files_are_complete_and_continuous(resumed_run, read_jsonl):
    assert [line["step"] for line in read_jsonl(resumed_run / "metrics.jsonl")] == list(range(1, 21))


def test_trackio_continues_the_same_run_after_a_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read once, at the first import
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    config = Config()
    config.trainer.logger = ["trackio"]
    config.trainer.project_name = f"test-{tmp_path.name}"
    for resume_step, steps in ((None, range(1, 4)), (3, range(4, 6))):
        with RunLog(tmp_path / "run", config, resume_step, console=RunConsole(io.StringIO())) as log:
            for step in steps:
                log.metrics(step, {"train/accuracy": step / 10})
    (run,) = storage.get_runs(config.trainer.project_name)
    rows = storage.get_logs(config.trainer.project_name, run)
    assert [(row["train/step"], row["train/accuracy"]) for row in rows] == [(s, s / 10) for s in range(1, 6)]


def test_without_a_login_wandb_records_offline(tmp_path, monkeypatch, caplog):
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    config = Config()
    config.trainer.logger = ["wandb"]
    with RunLog(tmp_path / "run", config, console=RunConsole(io.StringIO())) as log:
        log.metrics(1, {"train/accuracy": 0.5})
    wandb.teardown()
    assert any("wandb is not logged in" in r.getMessage() for r in caplog.records)
    (path,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    points = [wandb_points(r) for r in wandb_records(path) if r.WhichOneof("record_type") == "history"]
    assert [p["train/accuracy"] for p in points] == [0.5]


if __name__ == "__main__":
    crash_after_step_14(Path(sys.argv[1]))
