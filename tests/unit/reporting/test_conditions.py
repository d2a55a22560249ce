"""A table compares what can be compared: what runs may differ in, and what is said when they differ in more."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any

import pytest
import yaml

from sdpo.cli.compare import main
from sdpo.config import fields
from sdpo.config.schema import Config
from sdpo.errors import DataError
from sdpo.reporting.comparison.conditions import may_differ, spoils
from sdpo.reporting.comparison.curves import Budget, Curve, Point, curve_of
from sdpo.reporting.comparison.summary import compare
from sdpo.reporting.comparison.tables import comparison_page, markdown
from sdpo.tracking.history import RunHistory

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
# A sample of each kind, the ones that people change.
MAY_DIFFER = {
    f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.self_distillation.alpha", f"{ACTOR}.ppo_mini_batch_size",
    f"{ACTOR}.optim.weight_decay", f"{ACTOR}.optim.lr_warmup_steps", "algorithm.norm_adv_by_std_in_grpo",
    f"{ACTOR}.self_distillation.success_reward_threshold", "grading.feedback_style",
}  # fmt: skip
FREE = {
    f"{ACTOR}.optim.lr", "data.seed", "trainer.seed", "trainer.experiment_name", "trainer.default_local_dir",
    "trainer.logger", "trainer.save_freq", "trainer.total_training_steps", "vars",
}  # fmt: skip
MUST_NOT = {
    f"{MODEL}.path", f"{MODEL}.revision", f"{MODEL}.override_config", "data.train_files", "data.val_files",
    "data.val_max_samples", "data.train_max_samples", "data.max_prompt_length", "data.max_response_length",
    "data.apply_chat_template_kwargs", "data.train_batch_size", f"{ROLLOUT}.n", f"{ROLLOUT}.temperature",
    *(f"{ROLLOUT}.val_kwargs.{name}" for name in ("n", "temperature", "top_p", "top_k", "do_sample")),
    "trainer.val_success_threshold", "trainer.test_freq", "grading.answer_tags_required", "grading.cpu_seconds",
    "custom_reward_function.path", "cluster", f"{ROLLOUT}.name", f"{ACTOR}.fsdp_config.param_dtype",
    "trainer.n_gpus_per_node",
}  # fmt: skip


def _other(value: Any) -> Any:
    """A value that is not this one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case list():
            return [*map(str, value), "other"]
        case dict():
            return {"other": 1}
    return f"{value}-other"


def _history(name: str, changes: dict[str, Any] | None = None, **state: Any) -> RunHistory:
    """Three validations, 10 s and 80 samples apart, of a run with these settings."""
    config = Config()
    for key, value in (changes or {}).items():
        section, _, last = key.rpartition(".")
        setattr(fields.get(config, section) if section else config, last, value)
    rows = [
        {"step": 10 * i, "val/avg@4": 0.1 + 0.3 * i, "timing/elapsed_s": 7.0 + 10.0 * i, "train/samples": 80 * i}
        for i in range(3)
    ]
    return RunHistory(Path(name), rows, state, asdict(config))


def _run(name: str, changes: dict[str, Any] | None = None, **state: Any) -> Curve:
    return curve_of(_history(name, changes, **state))


GRPO = {f"{ACTOR}.policy_loss.loss_mode": "vanilla"}
ALPHA = f"{ACTOR}.self_distillation.alpha"


def _settings(*runs: Curve) -> set[str]:
    return {difference.setting for difference in compare(list(runs)).differences}


def test_every_setting_is_free_compared_or_told():
    """Each key of the schema changed alone: never is a run averaged or set beside another as if nothing were."""
    plain, said = replace(_run("plain"), learning_rate=1.0), {}
    for number, (key, item) in enumerate(fields.by_key().items()):
        value = 1 if key in ("data.seed", f"{ACTOR}.optim.lr") else _other(item.default)
        other = replace(_run(str(number), {key: value}), label=plain.label, seed=1, learning_rate=1.0)
        rows = compare([plain, other])
        names = [difference.setting for difference in rows.differences]
        said[key] = "told" if names else "free" if len(rows.rows) == 1 else "compared"
        assert set(names) <= {key} and (not names or len(rows.rows) == 2), key
        for difference in rows.differences:
            assert str(difference) in markdown(rows) and escape(str(difference)) in comparison_page(rows)
    assert {key for key in MUST_NOT if said[key] != "told"} == set()
    assert {key for key in MAY_DIFFER if said[key] != "compared"} == set()
    assert {key for key in FREE if said[key] != "free"} == set()


def test_a_setting_that_no_list_knows_is_one_that_must_be_shared():
    assert not may_differ("data.of_tomorrow") and not may_differ("of_tomorrow")
    assert spoils("of_tomorrow") and may_differ(f"{ACTOR}.of_tomorrow")


def test_what_differs_is_above_the_table_on_the_page_and_in_the_json(tmp_path, capsys):
    folders = []
    for number, changes in enumerate(({}, GRPO | {f"{MODEL}.path": "models/<other>", "trainer.test_freq": 5})):
        history = _history(str(tmp_path / f"run{number}"), changes)
        history.run_dir.mkdir()
        (history.run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in history.rows))
        (history.run_dir / "resolved_config.yaml").write_text(yaml.safe_dump(history.config))
        folders.append(str(history.run_dir))
    out = tmp_path / "out"
    assert main(["--from-runs", *folders, "--out", str(out)]) == 0
    above = [text.partition("|")[0] for text in (capsys.readouterr().out, (out / "table.md").read_text())]
    page = (out / "index.html").read_text().partition("<table")[0]
    found = json.loads((out / "results.json").read_text())["differences"]
    values = {d["setting"]: d["values"]["GRPO"] for d in found}
    assert values == {f"{MODEL}.path": "models/<other>", "trainer.test_freq": "5"}
    for key, value in values.items():
        assert all(f"{key} is" in text and value in text for text in above)
        assert f"{key} is" in page and escape(value) in page


def test_runs_without_a_held_out_or_a_training_problem_in_common_are_refused():
    easy = {"data.train_files": ["e.parquet"], "data.val_files": ["e_val.parquet"]}
    a, b, c = _run("a"), _run("b", GRPO | easy), _run("c", {f"{ACTOR}.clip_ratio": 0.3})
    with pytest.raises(DataError, match="no number of these runs .*data.val_files is builtin.*e_val.parquet"):
        compare([a, b])
    assert _settings(a, b, c) == easy.keys()  # two of the three can be compared


def test_files_are_compared_by_what_they_held():
    """Another name for the same problems is no difference; other problems under the same name are one."""
    held = {"train": "9 problems, aa", "val": "5 problems, bb", "model": "cc"}
    moved = GRPO | {"data.val_files": ["/elsewhere/test.parquet"], "data.val_max_samples": 5}
    a = _run("a", inputs=held)
    assert _settings(a, _run("b", moved, inputs=held)) == set()
    for part, key in (("train", "data.train_files"), ("val", "data.val_files"), ("model", f"{MODEL}.path")):
        (difference,) = compare([a, _run("c", GRPO, inputs=held | {part: "other"})]).differences
        assert difference.setting == key and "other" in difference.values["GRPO"]
    assert _settings(a, _run("unknown", moved)) == {"data.val_files", "data.val_max_samples"}  # then names count


def test_machines_and_versions_differ_only_where_both_are_known():
    a = _run("a", inputs={"machine": "x86_64, 2 cores, cpu"}, versions={"torch": "2.1"})
    assert _settings(a, _run("b", GRPO)) == set()
    found = compare([a, _run("c", GRPO, inputs={"machine": "aarch64, cuda"}, versions={"torch": "2.2"})]).differences
    assert {d.setting for d in found} == {"machine", "versions.torch"}
    assert {d.spoils for d in found} == {"seconds are not those of the same machine"}


def test_seeds_are_averaged_only_over_runs_of_the_same_settings():
    """All are SDPO; what tells them apart is in the name of the row, long values by their beginning."""
    runs = [_run(f"{a}{s}", {ALPHA: a, "data.seed": s}) for a in (0.0, 1.0) for s in (0, 1)]
    found = compare(runs)
    assert [(row.label, row.seeds) for row in found.rows] == [("SDPO alpha=1", [0, 1]), ("SDPO alpha=0", [0, 1])]
    assert not found.cautions
    template = f"{ACTOR}.self_distillation.reprompt_template"
    labels = [row.label for row in compare([_run(i, {template: "word " * 50 + i}) for i in ("1", "2")]).rows]
    assert len(set(labels)) == 2 and all(len(label) < 80 for label in labels)


def test_a_schedule_over_all_steps_counts_where_there_is_one():
    for style, decay, rows in (("constant", -1, 1), ("cosine", -1, 2), ("cosine", 20, 1)):
        optim = {f"{ACTOR}.optim.warmup_style": style, f"{ACTOR}.optim.lr_decay_steps": decay}
        runs = [_run(str(n), optim, total_steps=n) for n in (50, 100)]
        assert len(compare([runs[0], replace(runs[1], seed=1)]).rows) == rows


def test_runs_that_choose_a_rate_do_so_for_their_own_settings():
    """Held-out problems of their own are meant to differ."""
    rate, files = f"{ACTOR}.optim.lr", {"data.seed": 9, "data.val_files": ["tuning.jsonl"]}
    rates = {0.0: (1.0, 2.0, 3.0), 1.0: (1.0, 2.0)}
    tuning = [_run(f"{a} {r}", {ALPHA: a, rate: r} | files) for a in rates for r in rates[a]]
    found = compare([_run(f"{a}", {ALPHA: a, rate: 2.0}) for a in rates], tuning=tuning)
    assert {row.label: [*row.mean_by_learning_rate] for row in found.rows} == {
        "SDPO alpha=0": ["1", "2", "3"],
        "SDPO alpha=1": ["1", "2"],
    }
    assert not found.differences


def test_a_run_of_an_older_version_is_said_to_lack_what_it_lacks():
    older = _history("older", GRPO)
    del older.config["trainer"]["val_success_threshold"]
    found = compare([_run("a"), curve_of(older)])
    assert not found.differences
    assert found.warnings == ["older does not record trainer.val_success_threshold; today's defaults were taken"]


# -- one budget for all values of a row ------------------------------------------------------------------------------


def _curve(label: str, *points: tuple[float, int, float], first_step: int = 0) -> Curve:
    made = [Point(first_step + 10 * i, s, n, a) for i, (s, n, a) in enumerate(points)]
    costs = [(s, {"rollout": s}) for s, _, _ in points[1:]]
    return Curve(label, label, 1e-3, 0, "val/avg@4", made, costs=costs)


def test_nothing_in_a_table_is_from_outside_of_the_budget_in_its_title():
    slow, fast = _curve("slow", (0, 0, 0.1), (40, 10, 0.2)), _curve("fast", (0, 0, 0.1), (20, 50, 0.3), (80, 90, 0.9))
    found = compare([slow, fast], targets=[0.2, 0.5])
    fast_row = next(row for row in found.rows if row.label == "fast")
    assert (fast_row.in_time.best.mean, fast_row.in_time.last.mean) == (0.3, 0.3)
    assert fast_row.in_time.targets["0.2"].spent == pytest.approx(10.0)
    assert fast_row.in_time.targets["0.5"].spent is None
    assert (fast_row.in_samples.best.mean, fast_row.in_samples.targets["0.2"].spent) == (0.1, None)
    assert fast_row.phase_seconds == {"rollout": 20.0}  # of the steps inside, too
    titles = [line for line in markdown(found).splitlines() if "within" in line and line[0] not in "|*"]
    assert all("within 40 s of training" in line or "within 10 samples" in line for line in titles) and len(titles) == 5
    assert "0.900" not in markdown(found)


def test_a_run_without_a_validation_in_the_budget_counts_as_untrained_and_says_so():
    found = compare([_curve("late", (0, 0, 0.1), (90, 80, 0.9))], Budget(seconds=45))
    assert found.rows[0].in_time.best.mean == 0.1
    assert found.warnings == ["late counts as untrained: within 45 s of training it was only validated before training"]


def test_a_run_that_ended_before_the_budget_says_so():
    short = _curve("short", (0, 0, 0.1), (20, 80, 0.5))
    assert "short ended after 20 s of training and 80 samples" in compare([short], Budget(seconds=45)).warnings[0]
    assert compare([short], Budget(seconds=20)).warnings == compare([short]).warnings == []


def test_a_run_that_was_not_validated_before_training_has_no_start():
    late = _curve("late", (30, 80, 0.6), (60, 160, 0.9), first_step=10)
    found = compare([late], Budget(seconds=60))
    assert found.rows[0].start is None and "not validated before training" in found.warnings[0]
    assert found.rows[0].mean_by_learning_rate == {"0.001": pytest.approx(0.75)}  # over the time that was seen
    with pytest.raises(DataError, match="no validation within 20 s of training, the first is after 30 s"):
        compare([late], Budget(seconds=20))


def test_a_source_that_the_run_was_not_validated_on_is_refused():
    run = _history("a", inputs={"val_sources": ["gsm8k"]})
    assert curve_of(run, "gsm8k").metric == "val/avg@4"
    with pytest.raises(DataError, match="no held-out accuracy on math"):
        curve_of(run, "math")
