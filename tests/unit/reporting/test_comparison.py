"""Comparison of runs at equal budgets, on numbers written by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from sdpo.cli.compare import main
from sdpo.errors import DataError
from sdpo.reporting.comparison.curves import Budget, Point, load_curve
from sdpo.reporting.comparison.figures import coloured
from sdpo.reporting.comparison.summary import best_rate, compare, estimate
from sdpo.reporting.comparison.tables import comparison_page, markdown

MODES = {"SDPO": "sdpo", "GRPO": "vanilla"}


def _run(root: Path, algorithm: str, rate: float, seed: int, accuracies: list[float], known: bool = False) -> Path:
    """Validations at steps 0, 10, 20, ...: 10 s of training and 80 samples each, 5 s of validation."""
    folder = root / f"{algorithm}-{rate}-{seed}"
    folder.mkdir(parents=True)
    rows = []
    for i, accuracy in enumerate(accuracies):
        row = {
            "step": 10 * i,
            "time": 0.0,
            "val/avg@4": accuracy,
            "timing/elapsed_s": 7.0 + 15.0 * i,
            "timing/validate_s": 5.0,
        }
        if known:
            row |= {"val/task/avg@4": accuracy, "val/known/avg@4": 1.0 - 0.1 * i}
        if i:
            row |= {
                "train/samples": 80 * i,
                "timing/step_s": 15.0,
                "timing/rollout_s": 6.0,
                "timing/update_s": 3.0,
                "train/response_length": 20.0 + i,
            }
        rows.append(row)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "data": {"seed": seed},
        "actor_rollout_ref": {"actor": {"optim": {"lr": rate}, "policy_loss": {"loss_mode": MODES[algorithm]}}},
    }
    (folder / "resolved_config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_time_counts_training_only(tmp_path):
    curve = load_curve(_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.6, 0.9]))
    assert curve.points == [Point(0, 0.0, 0, 0.1), Point(10, 10.0, 80, 0.6), Point(20, 20.0, 160, 0.9)]
    assert curve.phase_seconds(Budget()) == {"rollout": 6.0, "update": 3.0, "other": 1.0}  # 15 - 5 - 9; none had a sync


def test_the_mean_reward_of_the_same_responses_stands_beside_the_accuracy(tmp_path):
    folder = _run(tmp_path, "SDPO", 1e-3, 0, [0.0, 0.0, 0.0], known=True)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row |= {"val/reward": 0.2 + 0.1 * i, "val/task/reward": 0.5 + 0.1 * i, "timing/export_s": 1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = compare([load_curve(folder)])
    assert comparison.rows[0].in_time.reward == pytest.approx([0.2, 0.4])
    assert "0.200 → 0.400" in markdown(comparison) and "Held-out mean reward" in comparison_page(comparison)
    assert compare([load_curve(folder, "task")]).rows[0].in_time.reward == pytest.approx([0.5, 0.7])
    assert load_curve(folder).points[1].seconds == 9.0  # an export is no training
    assert compare([load_curve(_run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.2]))]).rows[0].in_time.reward == [None, None]


def test_a_phase_that_nobody_measured_has_no_seconds(tmp_path):
    comparison = compare([load_curve(_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.6]))])
    assert "| SDPO | 6.00 | 3.00 | – | 1.00 | 10.00 |" in markdown(comparison)


def test_a_target_is_met_between_validations_and_not_on_their_grid(tmp_path):
    """The same straight rise of 0.02 a second, validated every 10, 20 or 40 s, meets 0.6 after 25 s."""
    often = load_curve(_run(tmp_path / "often", "SDPO", 1e-3, 0, [0.1, 0.3, 0.5, 0.7, 0.9]))
    seldom = replace(often, points=often.points[::2])
    rarely = replace(often, points=often.points[::4])
    for curve in (often, seldom, rarely):
        met = curve.reach(0.6)
        assert (met.seconds, met.samples, met.accuracy) == (pytest.approx(25.0), 200, 0.6)
    assert often.reach(0.5) == often.points[2]  # a validation that has it exactly
    assert often.reach(0.05) == often.points[0]  # had before training
    assert often.reach(0.95) is None


def test_the_first_time_a_target_is_met_counts(tmp_path):
    curve = load_curve(_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.1, 0.6, 0.2, 0.9]))
    assert curve.reach(0.5).seconds == pytest.approx(18.0)
    assert curve.reach(0.8).seconds == pytest.approx(30.0 + 10.0 * 0.6 / 0.7)


def test_best_and_last_count_only_validations_inside_the_budget(tmp_path):
    curve = load_curve(_run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.7, 0.6, 0.9]))
    assert curve.best(Budget(seconds=20)) == 0.7 and curve.last(Budget(seconds=20)) == 0.6
    assert curve.best(Budget(seconds=29.9)) == 0.7 and curve.best(Budget(seconds=30)) == 0.9
    assert curve.last(Budget(samples=80)) == 0.7
    assert curve.last(Budget(seconds=3)) == 0.1  # before training nothing is spent


def test_an_open_budget_is_what_every_run_has_spent(tmp_path):
    runs = [_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.6]), _run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.2, 0.3, 0.4])]
    found = compare([load_curve(run) for run in runs])
    assert (found.budget.seconds, found.budget.samples) == (10.0, 80)
    sdpo, grpo = found.rows
    assert (sdpo.label, sdpo.in_time.last.mean, grpo.in_time.last.mean) == ("SDPO", 0.6, 0.2)


def test_the_standard_error_is_that_of_the_mean_over_seeds():
    found = estimate([0.7, 0.8, 0.9])
    assert found.mean == pytest.approx(0.8) and found.error == pytest.approx(0.1 / math.sqrt(3))
    assert str(found) == "0.800 ± 0.058" and str(estimate([0.5])) == "0.500"


def test_times_are_medians_over_all_seeds(tmp_path):
    runs = [
        _run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.6, 0.9]),
        _run(tmp_path, "SDPO", 1e-3, 1, [0.1, 0.4, 0.8]),
        _run(tmp_path, "SDPO", 1e-3, 2, [0.1, 0.5, 0.7]),
        _run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.1, 0.6]),
        _run(tmp_path, "GRPO", 1e-3, 1, [0.1, 0.1, 0.2]),
    ]
    sdpo, grpo = compare([load_curve(run) for run in runs]).rows
    assert (sdpo.learning_rate, sdpo.seeds, sdpo.in_time.last.mean) == (1e-3, [0, 1, 2], pytest.approx(0.8))
    half, high = sdpo.in_time.targets["0.5"], sdpo.in_time.targets["0.8"]
    assert (half.spent, half.seeds) == (10.0, 3) and sdpo.in_samples.targets["0.5"].spent == 80
    assert (high.spent, high.seeds) == (pytest.approx(20.0), 2)
    assert (grpo.in_time.targets["0.5"].spent, grpo.in_time.targets["0.5"].seeds) == (None, 1)  # one of two is not most


def test_a_rate_is_as_good_as_its_accuracy_averaged_over_the_time_in_the_budget(tmp_path):
    curve = load_curve(_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.7, 0.5]))
    assert curve.mean(Budget()) == pytest.approx((0.4 * 10 + 0.6 * 10) / 20)
    assert curve.mean(Budget(seconds=10)) == pytest.approx(0.4)
    assert curve.mean(Budget(seconds=5)) == 0.1  # only what was there before training
    slow = load_curve(_run(tmp_path, "SDPO", 2e-3, 0, [0.1, 0.2, 0.6]))
    assert best_rate([curve, slow]) == (1e-3, {1e-3: pytest.approx(0.5), 2e-3: pytest.approx(0.275)})


@pytest.mark.parametrize(("best", "place"), [(5e-4, "lowest"), (1e-3, "inside"), (2e-3, "highest")])
def test_rates_are_chosen_by_runs_that_are_not_reported_and_an_edge_of_the_grid_is_said(best, place, tmp_path, capsys):
    tried = [_run(tmp_path / "t", "SDPO", r, 9, [0.1, 0.9 if r == best else 0.5]) for r in (5e-4, 1e-3, 2e-3)]
    runs = [_run(tmp_path, "SDPO", best, seed, [0.1, 0.3]) for seed in (0, 1)]
    out = tmp_path / "out"
    told = ["--from-runs", *map(str, runs), "--tuning-runs", *map(str, tried), "--out", str(out)]
    assert main(told) == 0
    (row,) = json.loads((out / "results.json").read_text())["summary"]
    assert (row["learning_rate"], row["seeds"], row["best_rate_at"]) == (best, [0, 1], place)
    assert row["in_time"]["last"]["values"] == [0.3, 0.3]  # nothing of the runs that chose
    told = capsys.readouterr().out
    assert ("Warning" in told) == (place != "inside") and (place == "inside" or f"the {place} of the" in told)
    assert "on seed 9, which is not reported" in (out / "table.md").read_text()


def test_a_rate_tried_alone_is_no_edge(tmp_path, capsys):
    run = _run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.3])
    assert main(["--from-runs", str(run), "--out", str(tmp_path / "out")]) == 0
    assert "Warning" not in capsys.readouterr().out


def test_the_rate_that_was_run_on_every_seed_is_kept_when_a_shorter_run_closes_the_budget(tmp_path):
    """Over all of their time 1e-3 is better; within the 10 s of GRPO the order is the other way round."""
    grid = [_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.2, 0.9]), _run(tmp_path, "SDPO", 2e-3, 0, [0.1, 0.4, 0.3])]
    launched, _ = best_rate([load_curve(run) for run in grid])
    assert launched == 1e-3
    others = [_run(tmp_path, "SDPO", launched, seed, [0.1, 0.2, 0.9]) for seed in (1, 2)]
    short = _run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.2])
    found = compare([load_curve(run) for run in [*grid, *others, short]])
    assert found.budget.seconds == 10.0
    assert (found.rows[0].learning_rate, found.rows[0].seeds) == (launched, [0, 1, 2])
    assert found.rows[0].mean_by_learning_rate == {"0.001": pytest.approx(0.15), "0.002": pytest.approx(0.25)}


def test_with_a_data_source_the_others_are_what_is_retained(tmp_path):
    run = _run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.5, 0.6], known=True)
    curve = load_curve(run, "task")
    assert curve.metric == "val/task/avg@4" and [p.accuracy for p in curve.points] == [0.1, 0.5, 0.6]
    (row,) = compare([curve], Budget(seconds=10)).rows
    assert row.retention == {"known": [1.0, pytest.approx(0.9)]}
    assert row.response_length == [21.0, 21.0]


class Balance(HTMLParser):
    open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_run_folders_become_table_figures_page_and_json_without_a_run(tmp_path, capsys):
    runs = [str(_run(tmp_path, a, 1e-3, s, [0.1, 0.3 + s, 0.7], True)) for a in MODES for s in (0, 1)]
    out = tmp_path / "out"
    assert main(["--from-runs", *runs, "--out", str(out), "--source", "task", "--title", "A <b> title"]) == 0
    names = ["accuracy.png", "index.html", "results.json", "retention.png", "steps.png", "table.md"]
    assert sorted(p.name for p in out.iterdir()) == names
    assert "| SDPO | 0.001 | 2 |" in capsys.readouterr().out
    assert json.loads((out / "results.json").read_text())["budget"] == {"seconds": 20.0, "samples": 160}
    page = (out / "index.html").read_text()
    Balance().feed(page)
    assert "A &lt;b&gt; title" in page and "<b> title" not in page and "src=" not in page


def test_every_arm_is_drawn_however_many_there_are(tmp_path):
    curve = load_curve(_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.2]))
    rows = compare([replace(curve, label=f"arm{i}") for i in range(8)]).rows
    assert [row for row, _ in coloured(rows)] == rows
    assert len({colour for _, colour in coloured(rows)}) == 6


def test_a_run_without_validations_is_one_line_of_error(tmp_path, capsys):
    run = _run(tmp_path, "GRPO", 1e-3, 0, [0.1])
    with pytest.raises(DataError, match="held-out"):
        load_curve(run)
    assert main(["--from-runs", str(run), "--out", str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_without_its_configuration_is_one_line_of_error_that_names_it(tmp_path, capsys):
    run = _run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.2])
    (run / "resolved_config.yaml").unlink()
    assert main(["--from-runs", str(run), "--out", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(run) in error and "resolved_config.yaml" in error


def test_the_same_run_twice_is_not_two_seeds(tmp_path, capsys):
    run = str(_run(tmp_path, "GRPO", 1e-3, 4, [0.1, 0.2]))
    assert main(["--from-runs", run, run, "--out", str(tmp_path / "out")]) == 3
    assert "both are GRPO with learning rate 0.001 and seed 4" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    ["--jobs=0", "--samples=0", "--seconds=-1", "--seconds=nan", "--seeds=0,1,0", "--rates=1e-3,0.001", "--seeds="],
)
def test_an_option_that_makes_no_sense_is_refused_before_a_run_is_started(option, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "out"), "trainer.total_training_steps=1", option])
    assert option.split("=")[0] in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_rate_cannot_be_tried_on_a_seed_that_is_reported(tmp_path, capsys):
    steps = "trainer.total_training_steps=1"
    assert main(["--out", str(tmp_path / "out"), steps, "--seeds=0,1", "--rates=1e-3,2e-3", "--tuning-seed=1"]) == 2
    assert "--tuning-seed: got 1" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_comparison_without_an_end_is_refused(tmp_path, capsys):
    assert main(["--out", str(tmp_path)]) == 2
    assert "--seconds" in capsys.readouterr().err
