"""The two paths whose time and memory are compared compute the same loss and the same gradients."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[3] / "recipes" / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)  # the benchmark sets a run's environment; put back behind the test
    before = set(os.environ)
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    yield importlib.import_module("loss")
    for name in set(os.environ) - before:
        del os.environ[name]
    for name in ("loss", "step_case"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("mode", ["full", "topk", "token", "policy"])
def test_the_paths_of_the_loss_benchmark_agree(benchmark, mode):
    assert mode in benchmark.MODES and len(benchmark.PATHS) == 2
    found = []
    for path in benchmark.PATHS.values():
        inputs = benchmark.Inputs(200, 64, 8192, "cpu", torch.float32)  # large enough for the compiled kernels
        value = path(inputs, mode)
        value.backward()
        found.append((value.detach(), inputs.hidden.grad, inputs.head.grad))
    for wanted, here in zip(*found, strict=True):
        assert (here - wanted).abs().max() <= 1e-5 * wanted.abs().max()
