"""The benchmark of the controller follows the program: every part of it is timed, with the samples' own tokens."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest

from sdpo.config.schema import Config
from sdpo.models.load import load_chat

BENCHMARKS = Path(__file__).parents[3] / "recipes" / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)  # the benchmark sets a run's environment; put back behind the test
    before = set(os.environ)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    yield importlib.import_module("controller")
    for name in set(os.environ) - before:
        del os.environ[name]
    for name in ("controller", "step_case"):
        sys.modules.pop(name, None)


def test_every_part_of_the_controllers_work_is_measured(benchmark, tmp_path: Path) -> None:
    config = Config()
    config.trainer.logger = []
    row = benchmark.measure(config, load_chat(config), samples=16, tokens=64, folder=tmp_path)
    assert row["trained"] == 16 and set(row["seconds"]) == {benchmark.REPROMPTS, *benchmark.BEYOND}
    assert 0 < row["rows_mib"] < row["samples_mib"]
    benchmark.draw([row, {**row, "samples": 32}], tmp_path / "figure.png")
