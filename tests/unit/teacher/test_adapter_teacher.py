"""An average of B·A in factors of low rank is the average of the product, up to a small share; one of A and one of B
apart is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sdpo.teacher.adapters import truncated

RANK, OUT, IN = 8, 64, 48


def _students(steps: int, rate: float):
    """A and B of Adam on a target that drifts."""
    draw = torch.Generator().manual_seed(0)
    a = (torch.rand(RANK, IN, generator=draw) * 2 - 1).div_(IN**0.5).requires_grad_()
    b = torch.zeros(OUT, RANK, requires_grad=True)
    target = torch.randn(OUT, IN, generator=draw) * 0.3
    adam = torch.optim.Adam([a, b], lr=rate)
    for _ in range(steps):
        target += torch.randn(OUT, IN, generator=draw) * 0.03
        adam.zero_grad()
        (b @ a - target).square().mean().backward()
        adam.step()
        yield a.detach().clone(), b.detach().clone()


SHARES = {20: {2: 0.02, 3: 0.005, 4: 0.003}, 60: {2: 0.05, 3: 0.02, 4: 0.01}}  # steps: ranks in those of the student


@pytest.mark.parametrize("adam_rate", [0.01, 0.05])
@pytest.mark.parametrize("tau", [0.01, 0.05])
def test_the_average_of_the_product_loses_less_than_the_stated_share(adam_rate, tau):
    exact = torch.zeros(OUT, IN)
    kept = {times: (torch.zeros(OUT, times * RANK), torch.zeros(times * RANK, IN)) for times in (2, 3, 4)}
    apart: tuple[torch.Tensor, torch.Tensor] | None = None
    for steps, (a, b) in enumerate(_students(60, adam_rate), start=1):
        exact.lerp_(b @ a, tau)
        for times, (left, right) in kept.items():
            both = torch.cat([left * (1 - tau), b * tau], 1), torch.cat([right, a])
            kept[times] = truncated(*both, times * RANK)[:2]
        apart = (a, torch.zeros_like(b)) if apart is None else apart
        apart = apart[0].lerp(a, tau), apart[1].lerp(b, tau)
        if steps in SHARES:
            size = exact.norm()
            for times, share in SHARES[steps].items():
                left, right = kept[times]
                assert (left @ right - exact).norm() <= share * size, (steps, times)
            if steps == 20:
                assert (apart[1] @ apart[0] - exact).norm() > 0.1 * size


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**30))
def test_the_cut_is_the_best_of_its_rank_and_says_what_it_takes(out, inputs, columns, rank, seed):
    """Also where the factors have more columns than the product has rows."""
    draw = torch.Generator().manual_seed(seed)
    left, right = torch.randn(out, columns, generator=draw), torch.randn(columns, inputs, generator=draw)
    new_left, new_right, singular = truncated(left, right, rank)
    assert new_left.shape == (out, rank) and new_right.shape == (rank, inputs)
    whole = left @ right
    values = torch.linalg.svdvals(whole)
    off = (new_left @ new_right - whole).norm()
    torch.testing.assert_close(off, values[rank:].square().sum().sqrt(), atol=1e-4 * float(values[0]), rtol=0)
    torch.testing.assert_close(singular[rank:].square().sum().sqrt(), off, atol=1e-4 * float(values[0]), rtol=0)


def test_a_product_of_zeros_stays_one():
    left, right, singular = truncated(torch.zeros(4, 3), torch.zeros(3, 5), 2)
    assert not left.any() and not right.any() and not singular.any()
