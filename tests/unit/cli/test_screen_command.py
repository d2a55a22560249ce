"""`sdpo.cli.screen` on the built-in model: the whole way with the run's own engine, sandbox and reprompts."""

from __future__ import annotations

import json

import pytest

from sdpo.cli.screen import main

SMALL = ["cluster=inline", "actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.rollout.n=4"]


def test_the_teacher_of_the_built_in_model_is_far_above_the_student(tmp_path, capsys):
    out = tmp_path / "new" / "screen.json"
    assert main([*SMALL, "--problems", "12", "--per-problem", "1", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "SDPO should help: expected gain +" in text
    found = json.loads(out.read_text())
    assert found["screening"]["student"]["value"] < 0.4
    feedback = found["screening"]["contexts"][0]
    assert (feedback["name"], feedback["coverage"] > 0.6, feedback["teacher"]["value"] > 0.6) == (
        "feedback",
        True,
        True,
    )
    assert found["verdict"]["helps"] is True and found["verdict"]["gain"][0] > 0.2


@pytest.mark.parametrize("name", ["file/screen.json", "folder"])
def test_a_file_that_cannot_be_written_is_told_before_the_measurement(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sdpo.screening.measure.screen", lambda *given: pytest.fail("measured"))
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    assert main([*SMALL, "--json", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: --json ") and error.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["nonsense=1"], ["data.train_files=[none.jsonl]"], ["actor_rollout_ref.actor.self_distillation.alpha=7"]]
)
def test_a_wrong_setting_is_one_line_and_no_model_is_loaded(argv, capsys):
    assert main([*SMALL, *argv]) in (2, 3)
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


@pytest.mark.parametrize("option", ["--problems=0", "--per-problem=-1", "--problems=many"])
def test_a_number_of_problems_that_makes_no_sense_is_refused(option, capsys):
    with pytest.raises(SystemExit):
        main([option])
    assert option.split("=")[0] in capsys.readouterr().err
