from __future__ import annotations

from sdpo.cli.report import main


def test_the_command_writes_the_report_and_prints_its_path(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "train/accuracy": 0.5}\n')
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_a_folder_that_is_no_run_is_one_line_and_a_failing_exit_code(tmp_path, capsys):
    assert main([str(tmp_path / "missing")]) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
