"""What answers before anything heavy is loaded: help, configuration errors, the records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "ray", "vllm", "verl", "datasets", "tensordict", "numpy", "pandas", "matplotlib")


def light_modules() -> list[str]:
    config = Path(__file__).resolve().parents[2] / "sdpo/config"
    names = sorted(path.stem for path in config.glob("[!_]*.py"))
    return ["sdpo", "sdpo.records", "sdpo.errors", *(f"sdpo.config.{name}" for name in names)]


@pytest.mark.parametrize("module", light_modules())
def test_importing_it_loads_nothing_heavy(module: str, repository: Path) -> None:
    program = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [], f"import {module} loads {answer.stdout.strip()}"
