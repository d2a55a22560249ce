from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def benchmark_module(repository: Path, monkeypatch) -> Iterator[Callable[[str], ModuleType]]:
    """A script of `recipes/benchmarks` as a module. It sets a run's environment, which is put back behind the test."""
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)
    variables, modules = set(os.environ), set(sys.modules)
    folder = repository / "recipes" / "benchmarks"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    yield importlib.import_module
    for name in set(os.environ) - variables:
        del os.environ[name]
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{folder}/"):
            del sys.modules[name]
