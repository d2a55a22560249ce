"""Weights in a mapped file: equal to those in memory, in memory only while they are used, and never half there."""

from __future__ import annotations

import resource

import pytest
import torch
from torch import nn

from sdpo.errors import ModelError
from sdpo.offload.file_weights import FileWeights
from tests.unit.offload.resident import in_memory, pages, pages_in_memory

FAULT_AROUND = 32  # pages before and behind a touched one that the system may map with it


@pytest.fixture
def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))).requires_grad_(False)


def test_a_forward_pass_has_one_layer_in_memory_at_a_time(layers, tmp_path):
    inputs = torch.randn(3, 256)
    wanted = layers(inputs)
    weights = FileWeights(layers, layers, str(tmp_path))
    assert not any(map(in_memory, layers.parameters()))
    seen = []
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: seen.append(sum(map(pages_in_memory, layers.parameters()))))
    assert torch.equal(layers(inputs), wanted)
    assert len(seen) == 6 and max(seen) <= FAULT_AROUND < pages(layers[0].weight)
    float(layers[3].weight.sum())
    assert in_memory(layers[3].weight)
    weights.give_back([layers[3].weight])
    assert not in_memory(layers[3].weight)


def test_what_is_written_stays(layers, tmp_path):
    weights = FileWeights(layers, [], str(tmp_path / "made" / "when missing"))
    before = [p.clone() for p in layers.parameters()]
    for parameter in layers.parameters():
        parameter.mul_(2)
    weights.give_back(layers.parameters())
    assert not any(map(in_memory, layers.parameters()))
    assert all(torch.equal(p, 2 * old) for p, old in zip(layers.parameters(), before, strict=True))


def test_tied_weights_are_one_tensor_in_the_file(tmp_path):
    module = nn.ModuleDict({"embedding": nn.Embedding(50, 8), "head": nn.Linear(8, 50, bias=False)})
    module["head"].weight = module["embedding"].weight
    FileWeights(module.requires_grad_(False), [], str(tmp_path))
    module["embedding"].weight.zero_()
    assert not module["head"].weight.any()


def test_a_disk_that_cannot_hold_them_is_said_in_a_line(layers, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ModelError, match=r"^teacher_offload: the teacher's 2 MiB do not fit in .*too large$"):
            FileWeights(layers, layers, str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
