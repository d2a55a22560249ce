"""Comparison of runs, on numbers written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from sdpo.cli.compare import main
from sdpo.errors import DataError
from sdpo.tracking.compare import load_curve, summarize

MODES = {"SDPO": "sdpo", "GRPO": "vanilla"}


def _run(root: Path, algorithm: str, rate: float, seed: int, accuracies: list[float]) -> Path:
    """Validations at steps 0, 10, 20, ...: 10 s of training and 80 samples each, 5 s of validation."""
    folder = root / f"{algorithm}-{rate}-{seed}"
    folder.mkdir()
    rows = []
    for i, accuracy in enumerate(accuracies):
        row = {
            "step": 10 * i,
            "time": 0.0,
            "val/avg@4": accuracy,
            "timing/elapsed_s": 7.0 + 15.0 * i,
            "timing/validate_s": 5.0,
        }
        rows.append(row | ({"train/samples": 80 * i} if i else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "data": {"seed": seed},
        "actor_rollout_ref": {"actor": {"optim": {"lr": rate}, "policy_loss": {"loss_mode": MODES[algorithm]}}},
    }
    (folder / "resolved_config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_time_counts_training_only(tmp_path):
    curve = load_curve(_run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.6, 0.9]))
    assert curve.points == [(0, 0.0, 0, 0.1), (10, 10.0, 80, 0.6), (20, 20.0, 160, 0.9)]
    assert curve.reach(0.5) == (10.0, 80) and curve.reach(0.8) == (20.0, 160) and curve.reach(0.95) is None


def test_the_best_rate_is_chosen_on_the_first_seed_and_times_are_medians_over_seeds(tmp_path):
    runs = [
        _run(tmp_path, "SDPO", 1e-3, 0, [0.1, 0.6, 0.9]),
        _run(tmp_path, "SDPO", 1e-3, 1, [0.1, 0.4, 0.8]),
        _run(tmp_path, "SDPO", 1e-3, 2, [0.1, 0.5, 0.7]),
        _run(tmp_path, "SDPO", 2e-3, 0, [0.1, 0.9, 0.2]),
        _run(tmp_path, "GRPO", 1e-3, 0, [0.1, 0.1, 0.6]),
        _run(tmp_path, "GRPO", 1e-3, 1, [0.1, 0.1, 0.2]),
    ]
    sdpo, grpo = summarize([load_curve(run) for run in runs])
    assert (sdpo.algorithm, sdpo.learning_rate, sdpo.seeds, sdpo.final) == ("SDPO", 1e-3, [0, 1, 2], 0.8)
    assert sdpo.final_by_learning_rate == {"0.001": 0.9, "0.002": 0.2}  # on the first seed
    assert sdpo.to_target == {"0.5": {"seconds": 10.0, "samples": 80}, "0.8": {"seconds": 20.0, "samples": 160}}
    assert grpo.to_target["0.5"] is None  # one of two seeds is not most


def test_files_and_best_rate_from_the_command_line(tmp_path, capsys):
    runs = [str(_run(tmp_path, "SDPO", rate, 0, [0.1, final])) for rate, final in ((5e-4, 0.3), (2e-3, 0.7))]
    assert main([*runs, "--best"]) == 0
    assert capsys.readouterr().out.strip() == "0.002"
    assert main([*runs, "--out", str(tmp_path / "out")]) == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["accuracy.png", "results.json", "table.md"]
    assert "| SDPO | 0.002 |" in capsys.readouterr().out


def test_a_run_without_validations_is_refused(tmp_path, capsys):
    run = _run(tmp_path, "GRPO", 1e-3, 0, [0.1])
    with pytest.raises(DataError, match="held-out"):
        load_curve(run)
    assert main([str(run), "--best"]) != 0
