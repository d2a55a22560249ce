from __future__ import annotations

import pytest
import torch
from torch import nn

from sdpo.rollout.few_rows import MIN_INPUTS, ROWS, TurnedLinear, turned_products


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(ROWS.start - 1,), (ROWS.start, 1), (16, 1), (4, 5), (ROWS.stop - 1,), (ROWS.stop, 1)]
)
def test_a_turned_product_is_the_product(shape, bias):
    torch.manual_seed(0)
    layer = nn.Linear(MIN_INPUTS, 300, bias)
    rows = torch.randn(*shape, MIN_INPUTS)
    with torch.no_grad():
        wanted = layer(rows)
        with turned_products(layer):
            found = layer(rows)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.is_contiguous()


def test_other_rows_take_the_usual_way_bit_for_bit():
    layer = nn.Linear(MIN_INPUTS, 300)
    for rows in (torch.randn(ROWS.stop, MIN_INPUTS), torch.randn(MIN_INPUTS)):
        with turned_products(layer):
            found = layer(rows)
        assert torch.equal(found, layer(rows))


def test_only_layers_with_many_inputs_are_turned_and_all_are_turned_back_after_an_error():
    wide, narrow = nn.Linear(MIN_INPUTS, 4), nn.Linear(MIN_INPUTS - 1, 4)
    with pytest.raises(OSError), turned_products(nn.ModuleList([wide, narrow])):
        assert type(wide) is TurnedLinear and type(narrow) is nn.Linear
        raise OSError
    assert type(wide) is nn.Linear


def test_a_layer_that_is_more_than_linear_keeps_its_own_way():
    class Adapted(nn.Linear):
        pass

    layer = Adapted(MIN_INPUTS, 4)
    with turned_products(layer):
        assert type(layer) is Adapted
