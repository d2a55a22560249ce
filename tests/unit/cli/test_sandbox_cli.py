from __future__ import annotations

import json

from sdpo.cli import sandbox as command
from sdpo.errors import SandboxUnavailable


def test_check_reports_level_features_and_self_test(capsys):
    assert command.main(["check"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("sandbox L")
    assert "self-test 19/19" in said
    assert "ok  processes" in said


def test_check_can_report_as_json_and_cap_the_level(capsys):
    assert command.main(["check", "--json", "--level", "L1"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["level"] == "L1"
    assert report["unsafe"] is False
    assert "no file can be opened; the standard library is served from memory" in report["weaker"]


def test_smoke_runs_six_programs_and_succeeds(capsys):
    assert command.main(["smoke"]) == 0
    said = capsys.readouterr().out
    names = ("passing code", "failing code", "time limit", "memory limit", "blocked network", "blocked files")
    assert all(f"ok   {name}" in said for name in names)
    assert "FAIL" not in said


def test_smoke_fails_when_a_program_is_not_stopped(monkeypatch, capsys):
    broken = (("blocked files", "print('read it')", b"", command.GradeStatus.RUNTIME_ERROR, "Error"),)
    monkeypatch.setattr(command, "SMOKE", broken)
    assert command.main(["smoke"]) == 6
    assert "FAIL blocked files" in capsys.readouterr().out


def test_a_machine_without_any_isolation_has_its_own_exit_code(monkeypatch, capsys):
    def refuse(options):
        raise SandboxUnavailable("no isolation level works on this machine")

    monkeypatch.setattr(command, "Sandbox", refuse)
    assert command.main(["check"]) == 6
    assert "no isolation level" in capsys.readouterr().err
