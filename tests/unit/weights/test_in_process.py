from __future__ import annotations

import pytest
import torch
from torch import nn

from sdpo.errors import RolloutError
from sdpo.weights.in_process import copy_module, load_into


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.lm_head = nn.Linear(3, 5, bias=False)
        self.lm_head.weight = self.embed.weight


def test_a_module_takes_over_the_weights_of_another_and_keeps_its_own_tensors():
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    place = target.weight.data_ptr()
    copy_module(source, target)
    assert torch.equal(source.weight, target.weight)
    assert target.weight.data_ptr() == place
    with torch.no_grad():
        source.weight.add_(1)
    assert not torch.equal(source.weight, target.weight)


def test_weights_are_cast_to_the_dtype_of_the_module():
    target = nn.Linear(3, 2).to(torch.bfloat16)
    load_into(target, nn.Linear(3, 2).state_dict())
    assert target.weight.dtype == torch.bfloat16


def test_a_tied_head_may_be_missing_and_follows():
    target = Tied()
    load_into(target, {"embed.weight": torch.ones(5, 3)})
    assert torch.equal(target.lm_head.weight, torch.ones(5, 3))


@pytest.mark.parametrize(
    ("tensors", "word"),
    [
        ({"weight": torch.ones(2, 3)}, "missing"),
        ({"weight": torch.ones(2, 3), "bias": torch.ones(2), "extra": torch.ones(1)}, "unknown"),
        ({"weight": torch.ones(3, 2), "bias": torch.ones(2)}, "misshapen"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_changes(tensors, word):
    target = nn.Linear(3, 2)
    before = target.weight.clone()
    with pytest.raises(RolloutError, match=f"weights.{word}"):
        load_into(target, tensors)
    assert torch.equal(target.weight, before)
