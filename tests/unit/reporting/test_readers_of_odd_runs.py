"""Report, live page and comparison read one and the same odd run alike: nulls, gaps, repeated and missing steps."""

from __future__ import annotations

import json

import pytest
import yaml

from sdpo.reporting.comparison.curves import load_curve
from sdpo.reporting.live import views
from sdpo.reporting.live.run import Filter, LiveRun
from sdpo.reporting.report import write_report
from sdpo.tracking.history import RunHistory

CONFIG = {
    "data": {"seed": 0},
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-3}, "policy_loss": {"loss_mode": "sdpo"}}},
}


def _run(folder, lines: list[dict]):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "resolved_config.yaml").write_text(yaml.safe_dump(CONFIG))
    return folder


@pytest.fixture
def odd_run(tmp_path):
    """Saved at 2, logged to 4, crashed, resumed from 2 without the lines after it; a loss that was not finite; a step
    in which nothing could be graded."""
    lines = [{"step": 0, "val/avg@4": 0.1, "timing/elapsed_s": 3.0, "timing/validate_s": 3.0}]
    for step in range(1, 7):
        line = {"step": step, "timing/elapsed_s": 3.0 + 2.0 * step, "train/samples": 8 * step, "actor/loss": 0.5}
        line |= {"actor/loss": None} if step == 3 else {}
        line |= {} if step == 4 else {"train/accuracy": 0.1 * step}
        line |= {"val/avg@4": 0.2 * step / 2, "timing/validate_s": 1.0} if step in (2, 4, 6) else {}
        lines.append(line)
    return _run(tmp_path, lines)


def test_they_agree_on_every_series_and_draw_without_a_nan(odd_run):
    history, live = RunHistory.load(odd_run), LiveRun(odd_run)
    live.refresh()
    assert [step for step, _ in history.series("actor/loss")] == [1, 2, 4, 5, 6]
    assert [step for step, _ in history.series("train/accuracy")] == [1, 2, 3, 5, 6]
    for name in history.names():
        assert live.history().series(name) == history.series(name), name
    page = write_report(odd_run).read_text() + "".join(views.charts(live).values())
    assert "NaN" not in page and "Infinity" not in page and "nan" not in page.lower().replace("maintenance", "")
    json.loads(json.dumps(views.state(live), allow_nan=False))


def test_training_time_leaves_out_validation_and_the_resume_loses_none(odd_run):
    points = load_curve(odd_run).points
    assert [(p.step, p.seconds, p.samples) for p in points] == [(0, 0.0, 0), (2, 3.0, 16), (4, 6.0, 32), (6, 9.0, 48)]


@pytest.mark.parametrize(("given", "solved"), [(0.0, True), (0.1 * 3, True), (0.5, False), (None, False)])
def test_report_and_live_page_call_the_same_samples_solved(tmp_path, given, solved):
    """A threshold of 0 is a threshold; none in the configuration is 1."""
    _run(tmp_path, [{"step": 0, "val/avg@1": 0.3}])
    distillation = {} if given is None else {"success_reward_threshold": given}
    config = {"actor_rollout_ref": {"actor": {"self_distillation": distillation}}}
    (tmp_path / "resolved_config.yaml").write_text(yaml.safe_dump(config))
    sample = {"uid": "a", "index": 0, "prompt": [], "response": "x", "reward": 0.3}
    both = [sample | {"step": 0, "phase": "val_before"}, sample | {"step": 1, "phase": "val_after"}]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in both))
    live = LiveRun(tmp_path)
    live.refresh()
    assert ("1 kept" in write_report(tmp_path).read_text()) == solved
    assert {item["outcome"] for item in views.samples(live, Filter(), None)["items"]} == {
        "solved" if solved else "failed"
    }


def test_a_metrics_file_of_nulls_is_a_page_without_curves(tmp_path):
    run = _run(tmp_path, [{"step": 1, "actor/loss": None}])
    live = LiveRun(run)
    live.refresh()
    assert views.charts(live) == {} and "<svg" not in write_report(run).read_text()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("resolved_config.yaml", {"trainer": 1, "actor_rollout_ref": {"actor": [], "model": "m"}}),
        ("run.json", {"status": ["x"], "total_steps": "many"}),
        ("tokens.jsonl", {"policy_version": [], "uid": {"a": 1}, "index": None, "tokens": 3}),
        ("metrics.jsonl", {"step": 1, "train/samples": 10**400, "timing/step_s": 1e308}),
    ],
)
def test_a_value_of_another_kind_than_expected_is_left_out(tmp_path, name, content):
    run = _run(tmp_path, [{"step": 0, "val/avg@4": 0.1}, {"step": 1, "val/avg@4": 0.2}])
    sample = {"step": 1, "phase": "train", "uid": "a", "index": 0, "prompt": [], "response": "x", "reward": 1.0}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    with (run / name).open("a" if name.endswith(".jsonl") else "w") as file:
        file.write(json.dumps(content) + "\n")
    live = LiveRun(run)
    live.refresh()
    page = views.state(live)
    assert "0.200" in page["tiles"] and views.charts(live) and views.sample(live, 0, live.generation)["tokens"] is None
    assert "0.200" in write_report(run).read_text()


def test_token_numbers_belong_to_their_sample_whatever_kind_of_id_the_data_has(tmp_path):
    run = _run(tmp_path, [{"step": 1, "val/avg@4": 0.1}])
    sample = {"step": 1, "phase": "train", "uid": 7, "index": 0, "policy_version": 0, "prompt": [], "response": "x"}
    (run / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    tokens = {"policy_version": 0, "uid": 7, "index": 0, "tokens": ["x"], "student": [-1.0], "teacher": [-2.0]}
    (run / "tokens.jsonl").write_text(json.dumps(tokens) + "\n")
    live = LiveRun(run)
    live.refresh()
    assert views.sample(live, 0, live.generation)["tokens"] == [["x", -1.0, -2.0]]
