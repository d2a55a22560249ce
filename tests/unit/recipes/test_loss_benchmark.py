"""The two paths whose time and memory are compared compute the same loss and the same gradients."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("mode", ["full", "topk", "token", "policy"])
def test_the_paths_of_the_loss_benchmark_agree(benchmark_module, mode):
    benchmark = benchmark_module("loss")
    assert mode in benchmark.MODES and len(benchmark.PATHS) == 2
    found = []
    for path in benchmark.PATHS.values():
        inputs = benchmark.Inputs(200, 64, 8192, "cpu", torch.float32)  # large enough for the compiled kernels
        value = path(inputs, mode)
        value.backward()
        found.append((value.detach(), inputs.hidden.grad, inputs.head.grad))
    for wanted, here in zip(*found, strict=True):
        assert (here - wanted).abs().max() <= 1e-5 * wanted.abs().max()
