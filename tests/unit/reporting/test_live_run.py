"""What the live page knows: it follows the files through growth and resume, filters, searches, and stays quick."""

from __future__ import annotations

import json
import os

import pytest
import yaml

from sdpo.errors import DataError
from sdpo.reporting.live import views
from sdpo.reporting.live.run import Filter, LiveRun


def _sample(step: int, index: int, **changes) -> dict:
    record = {
        "step": step,
        "phase": "train",
        "uid": f"u{step}",
        "index": index,
        "data_source": "programs",
        "prompt": [{"role": "user", "content": f"Question {step}"}],
        "response": f"answer {index}",
        "response_tokens": 3,
        "finish_reason": "stop",
        "reward": float(index % 2),
        "status": "ok" if index % 2 else "wrong",
        "feedback": "",
        "teacher_prompt": f"Teacher {step}" if index == 0 else None,
        "policy_version": step - 1,
    }
    return record | changes


def _write(path, records, mode="w"):
    with path.open(mode, encoding="utf-8") as file:
        file.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


@pytest.fixture
def folder(tmp_path):
    _write(tmp_path / "samples.jsonl", [_sample(step, index) for step in (1, 2, 3) for index in range(4)])
    _write(tmp_path / "metrics.jsonl", [{"step": s, "train/accuracy": s / 10, "val/avg@4": 0.5} for s in range(4)])
    tokens = {
        "policy_version": 1,
        "uid": "u2",
        "index": 0,
        "tokens": ["a", "\n"],
        "student": [-1, -2],
        "teacher": [-2, -1],
    }
    _write(tmp_path / "tokens.jsonl", [tokens])
    (tmp_path / "run.json").write_text('{"status": "running"}')
    config = {"actor_rollout_ref": {"actor": {"self_distillation": {"success_reward_threshold": 1.0}}}}
    (tmp_path / "resolved_config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


@pytest.fixture
def run(folder):
    run = LiveRun(folder)
    run.refresh()
    return run


def _found(run: LiveRun, limit: int = 100, before: int | None = None, **wanted) -> list[tuple[int, int]]:
    return [(entry.step, entry.index) for _, entry in run.search(Filter(**wanted), before, limit)[0]]


def test_the_newest_sample_comes_first_and_pages_join_without_gap_or_repeat(run):
    whole = _found(run)
    assert whole[0] == (3, 3) and len(whole) == 12
    paged, before = [], None
    while True:
        found, before = run.search(Filter(), before, 5)
        paged += [(entry.step, entry.index) for _, entry in found]
        if before is None:
            break
    assert paged == whole


def test_filters_choose_by_phase_outcome_status_step_teacher_and_tokens(run, folder):
    _write(folder / "samples.jsonl", [_sample(3, 9, phase="val_after", reward=None, status="infra_error")], "a")
    run.refresh()
    assert _found(run, phase="val") == _found(run, outcome="ungraded") == _found(run, status="infra_error") == [(3, 9)]
    assert _found(run, outcome="solved", step=2) == [(2, 3), (2, 1)]
    assert _found(run, taught=True, phase="train") == [(3, 0), (2, 0), (1, 0)]
    assert _found(run, tokens=True) == [(2, 0)]


def test_held_out_samples_are_solved_by_their_own_threshold(folder):
    config = {"trainer": {"val_success_threshold": 0.5}}
    (folder / "resolved_config.yaml").write_text(yaml.safe_dump(config))
    _write(folder / "samples.jsonl", [_sample(3, i, phase=p, reward=0.7) for i, p in enumerate(("train", "val"))])
    live = LiveRun(folder)
    while live.refresh():
        pass
    found = {entry.phase: views.outcome(entry, live.thresholds()) for _, entry in live.search(Filter(), None, 9)[0]}
    assert found == {"train": "failed", "val": "solved"}


def test_search_finds_text_in_any_field_but_not_names_of_fields(run, folder):
    _write(folder / "samples.jsonl", [_sample(4, 0, response='He said "Ünique"\n\tand\\left')], "a")
    run.refresh()
    assert _found(run, text="teacher 2") == [(2, 0)]
    for text in ("ünique", 'said "', "and\\left", "\tand"):
        assert _found(run, text=text) == [(4, 0)], text
    assert _found(run, text="finish_reason") == []


def test_a_training_sample_has_the_token_numbers_of_its_own_update(run):
    ((number, _),) = run.search(Filter(tokens=True), None, 5)[0]
    found = views.sample(run, number, run.generation)
    assert found["tokens"] == [["a", -1, -2], ["\n", -2, -1]]
    assert [s["index"] for s in found["siblings"]] == [0, 1, 2, 3]
    assert views.sample(run, 0, run.generation)["tokens"] is None


def test_it_follows_a_run_that_grows_and_one_that_was_resumed(run, folder):
    _write(folder / "metrics.jsonl", [{"step": 4, "train/accuracy": 0.9}], "a")
    _write(folder / "samples.jsonl", [_sample(4, 0)], "a")
    run.refresh()
    assert run.history().last("train/accuracy") == 0.9 and len(run.entries) == 13
    for name, kept in (("metrics.jsonl", [{"step": 1, "train/accuracy": 0.1}]), ("samples.jsonl", [_sample(1, 0)])):
        _write(folder / "new", kept)
        os.replace(folder / "new", folder / name)
    before = run.generation
    run.refresh()
    assert run.history().series("train/accuracy") == [(1, 0.1)] and len(run.entries) == 1
    assert run.generation == before + 1 and views.sample(run, 0, before) is None


def test_two_lines_of_one_step_are_joined_as_the_report_joins_them(run, folder):
    _write(folder / "metrics.jsonl", [{"step": 2, "train/accuracy": 0.7, "late": 1}, {"step": 4, "late": 2}], "a")
    run.refresh()
    assert run.history().series("train/accuracy") == [(0, 0.0), (1, 0.1), (2, 0.7), (3, 0.3)]
    assert run.history().series("late") == [(2, 1), (4, 2)]


def test_a_folder_without_files_waits_and_one_that_is_missing_is_an_error(tmp_path):
    run = LiveRun(tmp_path)
    run.refresh()
    assert views.state(run)["samples"] == 0 and views.charts(run) == {}
    with pytest.raises(DataError, match="run folder"):
        LiveRun(tmp_path / "none")


def test_control_signs_arrive_as_visible_escapes(run, folder):
    _write(folder / "samples.jsonl", [_sample(5, 0, response="a\x00\x1b[2Jb", uid="\x07")], "a")
    run.refresh()
    found = views.sample(run, len(run.entries) - 1, run.generation)
    assert (found["response"], found["uid"]) == ("a\\x00\\x1b[2Jb", "\\x07")


def test_a_long_run_is_answered_from_the_index_and_a_search_in_its_texts_stops_in_between(tmp_path, monkeypatch):
    names = [f"group/metric_{i}" for i in range(40)] + ["train/accuracy", "val/avg@4"]
    line = json.dumps(dict.fromkeys(names, 0.25))[1:]
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {s}, {line}\n' for s in range(10_000)))
    record = json.dumps(_sample(1, 0, response="x" * 300))
    (tmp_path / "samples.jsonl").write_text("".join([record + "\n"] * 100_000))
    run = LiveRun(tmp_path)
    while run.refresh():
        pass
    run.refresh()
    reads = []
    raw = run._samples.raw
    monkeypatch.setattr(run._samples, "raw", lambda place: reads.append(place) or raw(place))
    views.state(run)
    views.charts(run)
    views.samples(run, Filter(status="nothing like it"), None)
    assert reads == []
    clock = iter(range(10**6))  # a second passes at every look at the clock
    monkeypatch.setattr("sdpo.reporting.live.run.time.monotonic", lambda: next(clock))
    found, following = run.search(Filter(text="nowhere"), None, 40)
    assert (found, len(reads), following) == ([], 2, 99_998)
