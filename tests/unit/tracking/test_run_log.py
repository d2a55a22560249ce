from __future__ import annotations

import errno
import io
import json
import logging
import math
from types import SimpleNamespace

import pytest
import yaml

from sdpo.records import Reprompt
from sdpo.tracking import RunLog
from sdpo.tracking.console import RunConsole


def test_not_finite_values_are_null_with_one_warning_for_the_run(config, tmp_path, read_jsonl, caplog):
    with RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.metrics(1, {"a": math.nan, "b": math.inf, "c": 1.0})
        log.metrics(2, {"a": math.nan, "b": 2.0})
    first, second = read_jsonl(tmp_path / "metrics.jsonl")
    assert (first["a"], first["b"], first["c"]) == (None, None, 1.0)
    assert (second["a"], second["b"]) == (None, 2.0)
    warnings = [r for r in caplog.records if "not finite" in r.getMessage()]
    assert len(warnings) == 1
    assert "a, b" in warnings[0].getMessage()


def test_every_line_has_step_unix_time_and_elapsed_seconds(config, tmp_path, read_jsonl):
    with RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.begin(1)
        log.metrics(1, {"train/accuracy": 0.5})
    (line,) = read_jsonl(tmp_path / "metrics.jsonl")
    assert line["step"] == 1
    assert line["time"] > 1.6e9
    assert 0 <= line["timing/elapsed_s"] < 60


class BrokenTracking:
    """A tracker whose network is down."""

    made = 0

    def __init__(self, project, name, backends, config):
        BrokenTracking.made += 1

    def log(self, data, step, backend=None):
        raise OSError("network is unreachable")

    def finish(self, exit_code=0):
        raise OSError("network is unreachable")


@pytest.fixture
def broken_tracking(monkeypatch):
    import sys

    BrokenTracking.made = 0
    monkeypatch.setitem(sys.modules, "verl.utils.tracking", SimpleNamespace(Tracking=BrokenTracking))


def test_crash_after_step_14_and_resume_from_10_leaves_each_step_once_though_the_tracker_fails(
    config, tmp_path, read_jsonl, make_group, broken_tracking, caplog
):
    config.trainer.logger = ["console", "mlflow"]
    crashed = RunLog(tmp_path, config, console=RunConsole(io.StringIO()))
    for step in range(1, 15):
        crashed.metrics(
            step, {"train/accuracy": step / 100, "train/samples": 8 * step, "timing/elapsed_s": 10.0 * step}
        )
        crashed.samples(step, [make_group(f"p{step}", [1.0])])
        crashed.tokens(step, [{"policy_version": step - 1, "uid": f"p{step}"}])
    with RunLog(tmp_path, config, resume_step=10, console=RunConsole(io.StringIO())) as log:
        assert log.last["train/samples"] == 80
        for step in range(11, 21):
            log.metrics(step, {"train/accuracy": step / 100})
            log.samples(step, [make_group(f"p{step}", [1.0])])
            log.tokens(step, [{"policy_version": step - 1, "uid": f"p{step}"}])
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 21))
    for name in ("samples.jsonl", "tokens.jsonl"):
        assert [line["step"] for line in read_jsonl(tmp_path / name)] == list(range(1, 21))
    elapsed = [line["timing/elapsed_s"] for line in lines]
    assert elapsed == sorted(elapsed)
    assert elapsed[10] >= 100.0
    failures = [r for r in caplog.records if "tracker mlflow failed" in r.getMessage()]
    assert len(failures) == 2  # once per process
    assert BrokenTracking.made == 2


def test_the_run_keeps_its_identity_over_a_resume_and_a_new_run_gets_another(config, tmp_path):
    ids = []
    for folder, resume_step in (("a", None), ("a", 0), ("b", None)):
        with RunLog(tmp_path / folder, config, resume_step, console=RunConsole(io.StringIO())) as log:
            log.metrics(1, {})
        ids.append(json.loads((tmp_path / folder / "run.json").read_text())["run_id"])
    assert ids[0] == ids[1] != ids[2]


def test_a_gap_between_the_log_and_the_checkpoint_is_said(config, tmp_path, caplog):
    with RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.metrics(1, {})
    RunLog(tmp_path, config, resume_step=5, console=RunConsole(io.StringIO())).close()
    assert any("resumes from step 5" in r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)


def test_a_sample_line_tells_prompt_response_verdict_and_what_the_teacher_saw(config, tmp_path, read_jsonl, make_group):
    group = make_group("p1", [1.0, 0.0, None], feedback="Expected: 7")
    reprompts = {("p1", 1): Reprompt([1], "teacher sees this", 0, True)}
    with RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.samples(3, [group], reprompts, phase="train")
    solved, wrong, ungraded = read_jsonl(tmp_path / "samples.jsonl")
    assert wrong["step"] == 3
    assert (wrong["phase"], wrong["uid"], wrong["index"]) == ("train", "p1", 1)
    assert wrong["prompt"] == [{"role": "user", "content": "Problem p1"}]
    assert (wrong["response"], wrong["response_tokens"]) == ("return x", 2)
    assert (wrong["reward"], wrong["status"], wrong["feedback"]) == (0.0, "wrong", "Expected: 7")
    assert (wrong["teacher_prompt"], wrong["demonstration_index"], wrong["used_feedback"]) == (
        "teacher sees this",
        0,
        True,
    )
    assert (wrong["policy_version"], wrong["finish_reason"], wrong["passed_fraction"]) == (7, "stop", 0.0)
    assert solved["teacher_prompt"] is None
    assert (ungraded["reward"], ungraded["status"]) == (None, "infra_error")


def test_the_gold_answer_is_not_in_the_samples(config, tmp_path, make_group):
    with RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.samples(1, [make_group("p1", [1.0])])
    assert "secret" not in (tmp_path / "samples.jsonl").read_text()


@pytest.mark.parametrize(("limit", "written"), [(3, 3), (-1, 8), (0, 0)])
def test_the_number_of_logged_samples_follows_the_setting(config, tmp_path, read_jsonl, make_group, limit, written):
    config.trainer.log_samples = limit
    with RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.samples(1, [make_group("p1", [0.0] * 4), make_group("p2", [0.0] * 4)])
    assert len(read_jsonl(tmp_path / "samples.jsonl")) == written


def test_the_run_folder_says_what_was_run_and_how_it_ended(config, tmp_path):
    with pytest.raises(KeyError), RunLog(tmp_path, config, console=RunConsole(io.StringIO())) as log:
        log.begin(9)
        raise KeyError
    state = json.loads((tmp_path / "run.json").read_text())
    assert (state["status"], state["total_steps"]) == ("failed", 9)
    resolved = yaml.safe_load((tmp_path / "resolved_config.yaml").read_text())
    assert resolved["data"]["train_batch_size"] == config.data.train_batch_size
    with pytest.raises(KeyboardInterrupt), RunLog(tmp_path, config, 0, RunConsole(io.StringIO())):
        raise KeyboardInterrupt
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "interrupted"
    with RunLog(tmp_path, config, 0, RunConsole(io.StringIO())):
        assert json.loads((tmp_path / "run.json").read_text())["status"] == "running"
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "finished"


def test_an_error_is_not_hidden_by_a_disk_that_cannot_record_it(config, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(KeyError), RunLog(tmp_path, config, console=RunConsole(io.StringIO())):
        monkeypatch.setattr("sdpo.tracking.run_log.write_atomically", full)
        raise KeyError
    assert any("No space left" in r.getMessage() for r in caplog.records)


def test_closing_twice_prints_one_table_and_writes_the_report(config, tmp_path):
    stream = io.StringIO()
    pages = []
    write = lambda run: pages.append(run) or run / "page"  # noqa: E731
    log = RunLog(tmp_path, config, console=RunConsole(stream), write_report=write)
    log.metrics(1, {"train/accuracy": 0.5})
    log.close()
    log.close()
    assert stream.getvalue().count(f"report       {tmp_path / 'page'}") == 1
    assert pages == [tmp_path]


def test_without_trackers_neither_torch_nor_verl_is_imported(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys\nfrom sdpo.config.schema import Config\nfrom sdpo.tracking import RunLog\n"
        f"log = RunLog({str(tmp_path)!r}, Config()); log.metrics(1, {{}}); log.close()\n"
        "print([name for name in ('torch', 'verl', 'wandb', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"'])
def test_a_damaged_run_json_does_not_keep_a_run_from_going_on(config, tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": null}\n{"step": 2, "time": "noon"}\n')
    RunLog(tmp_path, config, 2, RunConsole(io.StringIO())).close()
    assert json.loads((tmp_path / "run.json").read_text())["status"] == "finished"
