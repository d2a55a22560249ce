"""Linear layers while tokens are drawn on a CPU: products of a few rows with a large matrix.

With 8 to 48 rows and 1,024 inputs or more MKL takes up to twice as long for x W' as for W x', the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

ROWS = range(8, 49)
MIN_INPUTS = 1024


@contextmanager
def turned_products(module: nn.Module) -> Iterator[None]:
    """Within, the linear layers inside `module` that gain from it compute W x' where the rows are few. No gradient."""
    layers = [
        part
        for part in module.modules()
        if type(part) is nn.Linear and part.in_features >= MIN_INPUTS and part.weight.device.type == "cpu"
    ]
    for layer in layers:
        layer.__class__ = TurnedLinear
    try:
        yield
    finally:
        for layer in layers:
            layer.__class__ = nn.Linear


class TurnedLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features)
        if len(rows) not in ROWS or input.dtype != torch.float32:
            return super().forward(input)
        product = torch.mm(self.weight, rows.T).T.contiguous()
        if self.bias is not None:
            product += self.bias
        return product.view(*input.shape[:-1], -1)
