"""Every entry point with an output that takes nothing: one line that names it, none for `| head`, an exit code, and an
end."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sdpo.cli.program import program

HERE = Path(__file__).parent
PACKAGE = HERE.parents[2] / "sdpo"
STATES = {
    "closed": (8, "it is closed"),
    "reader gone": (141, None),
    "full": (8, "No space left on device"),
}
ROW = {"data_source": "gsm8k", "prompt": [{"role": "user", "content": "2+2?"}], "reward_model": {"ground_truth": "4"}}


def entry_points() -> list[str]:
    """Every module that can be started with `python -m`."""
    found = [path for path in PACKAGE.rglob("*.py") if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    names = [".".join(("sdpo", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in found]
    return sorted(name for name in names if name.startswith(("sdpo.cli.", "sdpo.main_sdpo")))


@pytest.fixture(scope="module")
def commands(tmp_path_factory) -> dict[str, tuple[str, list[str]]]:
    """What prints something, quickly: the help of every entry point, and real work of those that are quick."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    answer = {"kind": "math", "response": "\\boxed{4}", "gold": "4"}
    lines = [json.dumps(answer | {"id": i, "gold": str(i)}) for i in range(300)]
    (folder / "answers.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "train/accuracy": 0.5}) + "\n")
    golden = HERE.parents[1] / "golden" / "loss_golden.json"
    return {
        **{f"{module} --help": (module, ["--help"]) for module in entry_points()},
        "--cfg job": ("sdpo.main_sdpo", ["--cfg", "job"]),
        "--cfg job --resolve": ("sdpo.main_sdpo", ["--cfg", "job", "--resolve"]),
        "--version": ("sdpo.main_sdpo", ["--version"]),
        "data check": ("sdpo.cli.data", ["check", str(folder / "rows.jsonl")]),
        "grade": ("sdpo.cli.grade", [str(folder / "answers.jsonl")]),
        "golden": ("sdpo.cli.golden", [str(golden)]),
        "report": ("sdpo.cli.report", [str(folder)]),
        "watch": ("sdpo.cli.watch", [str(folder), "--port", "0"]),
        "sandbox check": ("sdpo.cli.sandbox", ["check", "--json"]),
    }


@pytest.fixture(scope="module")
def ends(commands, tmp_path_factory) -> dict[str, dict]:
    folder = tmp_path_factory.mktemp("ends")
    cases = {
        f"{name}, {state}".replace("/", " "): [*case, state] for name, case in commands.items() for state in STATES
    }
    (folder / "cases.json").write_text(json.dumps(cases))
    words = [sys.executable, str(HERE / "outputs.py"), str(folder), str(folder / "cases.json")]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_entry_point_is_a_program():
    names = entry_points()
    assert len(names) > 10
    for name in names:
        main = importlib.import_module(name).main
        assert main.__wrapped__.__module__ == name, name


@pytest.mark.parametrize("state", STATES)
def test_output_that_takes_nothing_is_one_line_and_an_exit_code(state, ends):
    code, why = STATES[state]
    wanted = (code, [f"error: standard output: {why}"] if why else [])
    found = {name: (end["code"], end["errors"].splitlines()) for name, end in ends.items() if name.endswith(state)}
    assert len(found) > 20
    assert {name: seen for name, seen in found.items() if seen != wanted} == {}


@pytest.mark.parametrize(
    ("module", "arguments", "named"),
    [
        ("sdpo.cli.grade", ["answers.jsonl", "--out", "/dev/full"], "--out /dev/full"),
        ("sdpo.cli.data", ["check", "rows.jsonl", "--json", "/dev/full"], "--json /dev/full"),
    ],
)
def test_a_file_that_was_asked_for_is_named_by_its_option(module, arguments, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (tmp_path / "answers.jsonl").write_text(json.dumps({"id": 1, "kind": "math", "response": "4", "gold": "4"}) + "\n")
    assert importlib.import_module(module).main(arguments) == 8
    assert capsys.readouterr().err == f"error: {named}: No space left on device\n"


@pytest.mark.parametrize(("given", "code", "said"), [(None, 0, ""), (3, 3, ""), ("why", 1, "why\n"), ([], 1, "")])
def test_an_exit_in_the_middle_means_what_it_means_in_python(given, code, said, monkeypatch, capsys):
    @program
    def main(argv=None):
        sys.exit(given)

    monkeypatch.setattr("sdpo.cli.program._occupy_standard_descriptors", lambda: None)  # pytest has its own
    assert (main(), capsys.readouterr().err) == (code, said)
