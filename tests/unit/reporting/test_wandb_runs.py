"""A comparison reads W&B runs through wandb's API (here a stand-in for the server's answers)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import wandb

from sdpo.errors import DataError
from sdpo.reporting.comparison.curves import load_curve

CONFIG = {
    "data": {"seed": 2},
    "trainer": {"group_name": None},
    "actor_rollout_ref": {"actor": {"optim": {"lr": 1e-5}, "policy_loss": {"loss_mode": "sdpo"}}},
}


def _rows():
    """Step 10 was logged, lost in a crash and logged again after the resume."""
    for step, accuracy, seconds in ((0, 0.1, 5.0), (10, 0.3, 15.0), (10, 0.4, 16.0), (20, 0.6, 30.0)):
        yield {
            "_step": 3 * step,
            "_timestamp": 1.7e9 + step,
            "train/step": step,
            "val/avg@4": accuracy,
            "timing/elapsed_s": seconds,
            "train/samples": 8 * step,
            "sdpo/divergence": None,
        }


@pytest.fixture
def server(monkeypatch):
    asked = []

    class Api:
        def run(self, path):
            asked.append(path)
            if path.endswith("gone"):
                raise wandb.errors.CommError("could not find run")
            return SimpleNamespace(config=CONFIG, state="finished", name="a run", scan_history=_rows)

    monkeypatch.setattr(wandb, "Api", Api)
    return asked


def test_a_wandb_run_is_a_curve_by_our_own_steps(server):
    curve = load_curve("wandb:team/project/abc123")
    assert server == ["team/project/abc123"]
    assert (curve.run, curve.label, curve.seed, curve.learning_rate) == ("abc123", "SDPO", 2, 1e-5)
    assert [(p.step, p.seconds, p.samples, p.accuracy) for p in curve.points] == [
        (0, 0.0, 0, 0.1),
        (10, 11.0, 80, 0.4),
        (20, 25.0, 160, 0.6),
    ]


def test_a_wandb_run_that_cannot_be_read_is_an_error_that_names_it(server):
    with pytest.raises(DataError, match="team/project/gone.*could not find run"):
        load_curve("wandb:team/project/gone")
