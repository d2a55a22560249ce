"""A place that cannot be written to ends every command in one line, before the work where that takes long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sdpo.cli import compare, dashboard, data


@pytest.fixture
def taken(tmp_path: Path) -> str:
    """A folder that cannot be made: its name is a file's."""
    (tmp_path / "taken").touch()
    return str(tmp_path / "taken")


def one_line(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ") and all(part in line for part in parts)


@pytest.mark.parametrize("inside", ["", "/new"])
def test_prepare(inside: str, taken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "2+2?", "answer": "#### 4"}))
    assert data.main(["prepare", "gsm8k", str(tmp_path / "train.jsonl"), taken + inside]) == 2
    one_line(capsys, "output folder", taken)


@pytest.mark.parametrize("argv", [["trainer.total_training_steps=1"], ["--from-runs", "wandb:a/b/c"]])
def test_compare_starts_and_reads_nothing(
    argv: list[str], taken: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("run_all", "load_curve"):
        monkeypatch.setattr(compare, name, lambda *given: pytest.fail("started"))
    assert compare.main(["--out", taken, *argv]) == 2
    one_line(capsys, "--out", taken)


def test_the_front_end_for_trackio(taken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dashboard.main(["trackio", "--write", taken]) == 2
    one_line(capsys, "--write", taken)
