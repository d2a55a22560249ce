from __future__ import annotations

import json

import pytest

from sdpo.errors import DataError
from sdpo.tracking.history import RunHistory, success_threshold


def write(run_dir, *lines, state=None, config=None) -> None:
    run_dir.mkdir(exist_ok=True)
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if state is not None:
        (run_dir / "run.json").write_text(json.dumps(state))
    if config is not None:
        (run_dir / "resolved_config.yaml").write_text(config)


def test_a_folder_without_metrics_is_an_error_that_names_it(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        RunHistory.load(tmp_path / "nowhere")


def test_lines_of_one_step_are_joined_and_steps_sorted(tmp_path):
    write(tmp_path, {"step": 2, "a": 1.0}, {"step": 1, "a": 0.5}, {"step": 2, "b": 3.0})
    history = RunHistory.load(tmp_path)
    assert history.rows == [{"step": 1, "a": 0.5}, {"step": 2, "a": 1.0, "b": 3.0}]


def test_a_null_is_a_gap_in_the_series(tmp_path):
    write(tmp_path, {"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 3, "a": 3.0})
    assert RunHistory.load(tmp_path).series("a") == [(1, 1.0), (3, 3.0)]


def test_a_line_cut_by_a_crash_and_broken_side_files_do_not_stop_the_reading(tmp_path):
    write(tmp_path, {"step": 1, "a": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "a"')
    (tmp_path / "run.json").write_text("{")
    (tmp_path / "resolved_config.yaml").write_text("a: [")
    history = RunHistory.load(tmp_path)
    assert (history.last("a"), history.state, history.config) == (1.0, {}, {})


@pytest.mark.parametrize("damaged", [b"\xff\xfe\x00a", b"[" * 5_000])
def test_a_side_file_of_other_bytes_reads_as_missing(tmp_path, damaged):
    write(tmp_path, {"step": 1, "a": 1.0})
    for name in ("run.json", "resolved_config.yaml"):
        (tmp_path / name).write_bytes(damaged)
    history = RunHistory.load(tmp_path)
    assert (history.last("a"), history.state, history.config) == (1.0, {}, {})


def test_the_summary_tells_before_after_and_the_best_in_between(tmp_path):
    lines = [{"step": 0, "val/avg@4": 0.1}]
    lines += [
        {"step": s, "train/samples": 8 * s, "timing/elapsed_s": 2.0 * s, "timing/rollout_s": 1.5} for s in (1, 2, 3)
    ]
    lines[2]["val/avg@4"], lines[3]["val/avg@4"] = 0.9, 0.8
    write(tmp_path, *lines, state={"status": "finished", "total_steps": 3})
    summary = RunHistory.load(tmp_path).summary()
    assert (summary.before, summary.after, summary.best, summary.best_step) == (0.1, 0.8, 0.9, 2)
    assert (summary.steps, summary.samples, summary.elapsed_s) == (3, 24, 6.0)
    assert summary.phase_seconds == {"rollout": 4.5}


def test_without_a_validation_before_training_there_is_no_before(tmp_path):
    write(tmp_path, {"step": 5, "val/avg@1": 0.3})
    summary = RunHistory.load(tmp_path).summary()
    assert (summary.before, summary.after) == (None, 0.3)


def test_the_held_out_accuracy_is_the_overall_one_with_the_largest_n(tmp_path):
    write(tmp_path, {"step": 1, "val/avg@1": 0.3, "val/avg@16": 0.2, "val/gsm8k/avg@32": 0.1})
    assert RunHistory.load(tmp_path).validation_name == "val/avg@16"


def test_held_out_responses_have_the_threshold_they_were_judged_by():
    own = {"trainer": {"val_success_threshold": 0.5}}
    distill = {"actor_rollout_ref": {"actor": {"self_distillation": {"success_reward_threshold": 0.2}}}}
    assert success_threshold(own | distill, held_out=True) == 0.5
    assert success_threshold(own | distill) == success_threshold(distill, held_out=True) == 0.2  # an old run
    assert success_threshold({}) == success_threshold({}, held_out=True) == 1.0


def test_steps_that_moved_nothing_are_counted_and_runs_that_do_not_say_have_none(tmp_path):
    write(tmp_path, *({"step": s, "actor/optimizer_steps": s % 2} for s in range(1, 6)))
    summary = RunHistory.load(tmp_path).summary()
    assert (summary.trained_steps, summary.idle_steps) == (5, 2)
    write(tmp_path, {"step": 1, "train/reward": 0.25}, {"step": 2, "train/reward": 0.5}, state={"warnings": 3})
    summary = RunHistory.load(tmp_path).summary()
    assert (summary.trained_steps, summary.idle_steps, summary.warnings) == (0, 0, [])
    assert summary.training == {"reward": (0.25, 0.5)}


@pytest.mark.parametrize("damaged", ["", "[1]", '{"metric": "val/avg@4", "step": 3, "value": null}', '{"step": "3"}'])
def test_a_damaged_note_of_the_best_step_reads_as_none(tmp_path, damaged):
    write(tmp_path, {"step": 1, "train/reward": 0.25})
    (tmp_path / "model_best").mkdir()
    (tmp_path / "model_best/best.json").write_text(damaged)
    assert RunHistory.load(tmp_path).summary().kept == {}


def test_time_split_counts_phases_and_not_the_totals(tmp_path):
    write(
        tmp_path,
        {"step": 1, "timing/rollout_s": 1.0, "timing/update_s": 3.0, "timing/step_s": 9.0, "timing/elapsed_s": 9.0},
    )
    assert list(RunHistory.load(tmp_path).phase_seconds()) == ["update", "rollout"]
