"""The tests leave what the user has as it was: the watch in tests/conftest.py notices when they do not."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys

MODULES = {
    "overwrites": "(RUN / 'tokens.jsonl').write_text('other')",
    "same_size": "(RUN / 'metrics.jsonl').write_text((RUN / 'metrics.jsonl').read_text())",
    "replaces": "(RUN / 'new').write_text('x'); (RUN / 'new').rename(RUN / 'samples.jsonl')",
    "adds": "(ROOT / 'outputs').mkdir()",
    "removes": "(RUN / 'report.html').unlink()",
    "rights": "(RUN / 'run.json').chmod(0o600)",
    "default_folder": "Path('runs/sdpo/run').mkdir(parents=True)",
    "clean": "assert not list(Path('.').iterdir())",
    "temporary": "(tmp_path / 'x').write_text('x')",
    "going_on": "(ROOT / 'runs/live/metrics.jsonl').write_text('a step of a run beside the tests')",
    "cache": "(ROOT / '.pytest_cache').mkdir(exist_ok=True)",
}
FINE = {"clean", "temporary", "going_on", "cache"}


def test_a_test_that_writes_outside_of_its_temporary_folder_is_noticed(repository, tmp_path):
    run, live = tmp_path / "runs/sdpo/own", tmp_path / "runs/live"
    for folder in (run, live, tmp_path / "tests"):
        folder.mkdir(parents=True)
    for name in ("tokens.jsonl", "metrics.jsonl", "samples.jsonl", "report.html", "run.json"):
        (run / name).write_text("the user's")
    shutil.copy(repository / "tests/conftest.py", tmp_path / "tests")
    for name, line in MODULES.items():
        head = f"from pathlib import Path\nROOT = Path({str(tmp_path)!r})\nRUN = ROOT / 'runs/sdpo/own'\n"
        (tmp_path / f"tests/test_{name}.py").write_text(f"{head}def test_it(tmp_path):\n    {line}\n")
    options = ["-q", "-rE", "--import-mode=importlib", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests"]
    with (live / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    noticed = {name for name in MODULES if f"ERROR tests/test_{name}.py" in done.stdout}
    assert noticed == MODULES.keys() - FINE, done.stdout
    assert "failed" not in done.stdout, done.stdout
