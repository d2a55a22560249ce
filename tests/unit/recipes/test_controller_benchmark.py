"""The benchmark of the controller follows the program: every part of it is timed, with the samples' own tokens."""

from __future__ import annotations

from pathlib import Path

from sdpo.config.schema import Config
from sdpo.models.load import load_chat


def test_every_part_of_the_controllers_work_is_measured(benchmark_module, tmp_path: Path) -> None:
    benchmark = benchmark_module("controller")
    config = Config()
    config.trainer.logger = []
    row = benchmark.measure(config, load_chat(config), samples=16, tokens=64, folder=tmp_path)
    assert row["trained"] == 16 and set(row["seconds"]) == {benchmark.REPROMPTS, *benchmark.BEYOND}
    assert 0 < row["rows_mib"] < row["samples_mib"]
    benchmark.draw([row, {**row, "samples": 32}], tmp_path / "figure.png")
