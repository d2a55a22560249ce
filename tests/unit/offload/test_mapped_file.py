"""Tensors in a mapped file: their own pages each, the layout of what they stand for."""

from __future__ import annotations

import mmap

import torch

from sdpo.offload.mapped_file import MappedFile
from tests.unit.offload.resident import in_memory


def test_each_tensor_is_like_its_model_and_has_pages_of_its_own(tmp_path):
    models = [
        torch.ones(3, 5, dtype=torch.bfloat16),
        torch.ones(()),
        torch.ones(600, 700).t(),
        torch.ones(8, 10)[:, :4],  # with gaps, which the copy does not have
    ]
    file = MappedFile(models, str(tmp_path), "some_offload", "the")
    for model, made in zip(models, file.tensors, strict=True):
        assert (made.shape, made.dtype, made.stride()) == (model.shape, model.dtype, torch.empty_like(model).stride())
        assert made.data_ptr() % mmap.PAGESIZE == 0
        assert not made.any()
    for number, made in enumerate(file.tensors):
        made.fill_(number + 1)
    file.give_back(file.tensors[:2])
    assert [in_memory(made) for made in file.tensors] == [False, False, True, True]
    assert all(bool((made == number + 1).all()) for number, made in enumerate(file.tensors))
