"""What the package says about its types is true, as far as mypy can tell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_the_types_hold(repository: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: `make install`")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
