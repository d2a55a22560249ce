from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from sdpo.tracking import trackers
from sdpo.tracking.trackers import RunIdentity, Trackers


class FakeTracking:
    """Stands for verl's Tracking; what each tracker does is set by the test."""

    behaviour: dict = {}
    calls: list = []

    def __init__(self, project, name, backends, config):
        (self.name,) = backends
        self.logger = {}
        self.calls.append((self.name, "start", os.environ.get("WANDB_RUN_ID")))
        self._do("start")

    def log(self, data, step, backend=None):
        self.calls.append((self.name, "log", step, data))
        self._do("log")

    def finish(self, exit_code=0):
        self.calls.append((self.name, "finish", exit_code))
        self._do("finish")

    def _do(self, what):
        action = self.behaviour.get((self.name, what))
        if action:
            action()


@pytest.fixture
def fake(monkeypatch):
    """A class of the test's own: a thread that an earlier test left hanging goes on with that test's."""
    own = type("OwnTracking", (FakeTracking,), {"behaviour": {}, "calls": []})
    monkeypatch.setitem(sys.modules, "verl.utils.tracking", SimpleNamespace(Tracking=own))
    return own


def identity(tmp_path, resume_step=None) -> RunIdentity:
    return RunIdentity(tmp_path, "project", "name", None, "abcd1234", resume_step)


def fail(error: Exception):
    def action():
        raise error

    return action


def logged(fake, name) -> list[int]:
    return [call[3]["train/step"] for call in fake.calls if call[:2] == (name, "log")]


def test_console_and_file_are_the_run_logs_own_business_and_start_nothing(fake, tmp_path):
    running = Trackers(identity(tmp_path), ["console", "file"], {})
    running.log(1, {"a": 1.0})
    running.close()
    assert fake.calls == []


def test_each_tracker_is_opened_once_even_when_named_twice(fake, tmp_path):
    Trackers(identity(tmp_path), ["swanlab", "console", "swanlab"], {}).close()
    assert [call[1] for call in fake.calls] == ["start", "finish"]


def test_one_failing_tracker_warns_once_and_the_other_gets_every_step(fake, tmp_path, caplog):
    fake.behaviour[("mlflow", "log")] = fail(OSError("no route to host"))
    running = Trackers(identity(tmp_path), ["mlflow", "swanlab"], {})
    for step in range(5):
        running.log(step, {"a": 1.0})
    running.close()
    assert logged(fake, "swanlab") == [0, 1, 2, 3, 4]
    assert logged(fake, "mlflow") == [0, 1, 2, 3, 4]  # tried again each time: a network may come back
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_a_tracker_that_cannot_start_does_not_take_the_others_with_it(fake, tmp_path, caplog):
    fake.behaviour[("mlflow", "start")] = fail(ImportError("No module named 'mlflow'"))
    running = Trackers(identity(tmp_path), ["mlflow", "swanlab"], {})
    running.log(1, {"a": 1.0})
    running.close()
    assert logged(fake, "swanlab") == [1]
    assert "No module named 'mlflow'" in caplog.text


def test_a_tracker_that_hangs_holds_the_training_up_for_a_bounded_time_only(fake, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trackers, "FINISH_TIMEOUT_S", 0.1)
    hangs, release, waits, join = threading.Event(), threading.Event(), [], threading.Thread.join
    monkeypatch.setattr(threading.Thread, "join", lambda thread, limit=None: waits.append(limit) or join(thread, limit))
    fake.behaviour[("swanlab", "log")] = lambda: hangs.set() or release.wait()
    running = Trackers(identity(tmp_path), ["swanlab"], {})
    for step in range(100):
        running.log(step, {"a": 1.0})
    assert hangs.wait(60)
    running.close()
    assert waits == [0.1] and logged(fake, "swanlab") == [0]  # it still hangs in the first
    assert "did not finish" in caplog.text
    release.set()


def test_a_tracker_that_hangs_at_its_start_does_not_block_the_run(fake, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trackers, "START_TIMEOUT_S", 0.1)
    release = threading.Event()
    fake.behaviour[("swanlab", "start")] = release.wait
    running = Trackers(identity(tmp_path), ["swanlab"], {})
    running.log(1, {"a": 1.0})
    assert "have not started" in caplog.text
    release.set()
    running.close()
    assert logged(fake, "swanlab") == [1]


def test_wandb_gets_the_step_as_a_metric_and_never_as_its_own_step(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(define_metric=lambda *a, **k: None, run=None))
    running = Trackers(identity(tmp_path), ["wandb", "swanlab"], {})
    running.log(11, {"a": 1.0, "b": None, "c": math.nan})
    running.close()
    steps = {call[0]: call[2] for call in fake.calls if call[1] == "log"}
    assert steps == {"wandb": None, "swanlab": 11}
    data = next(call[3] for call in fake.calls if call[:2] == ("wandb", "log"))
    assert data == {"a": 1.0, "train/step": 11}


def test_the_environment_is_as_before_once_a_tracker_has_started(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(define_metric=lambda *a, **k: None, run=None))
    Trackers(identity(tmp_path), ["wandb"], {}).close()
    assert ("wandb", "start", "abcd1234") in fake.calls
    assert "WANDB_RUN_ID" not in os.environ


def test_a_failed_run_ends_as_failed_in_its_trackers(fake, tmp_path):
    Trackers(identity(tmp_path), ["swanlab"], {}).close(exit_code=1)
    assert fake.calls[-1] == ("swanlab", "finish", 1)


def test_only_the_controller_can_open_a_run():
    package = Path(trackers.__file__).parent.parent
    opened = re.compile(r"sdpo\.tracking(\.run_log|\.trackers)? import|\b(wandb|trackio|Tracking)\b")
    parts = ("workers", "algorithms", "models", "teacher", "rollout", "weights", "grading")
    files = [path for part in parts for path in (package / part).rglob("*.py")]
    assert files
    assert [path for path in files if opened.search(path.read_text(encoding="utf-8"))] == []
