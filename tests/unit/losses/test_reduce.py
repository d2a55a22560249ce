from __future__ import annotations

import pytest
import torch

from sdpo.errors import ConfigError
from sdpo.losses.reduce import AGG_MODES, metric_sums, token_weights


def total(batches, losses, mode, normalization="component"):
    parts = [
        (token_weights(batch, mode, normalization, torch.float64) * torch.tensor(values, dtype=torch.float64)).sum()
        for batch, values in zip(batches, losses, strict=True)
    ]
    return float(sum(parts))


def test_token_mean_is_over_the_optimizer_step_whatever_the_micro_batches(token_batch_of):
    step = {"tokens": 5, "sequences": 2, "max_response_length": 4}
    two = [token_batch_of([4], **step), token_batch_of([1], **step)]
    assert total(two, [[1.0] * 4, [5.0]], "token-mean") == pytest.approx(1.8)
    assert total([token_batch_of([4, 1], **step)], [[1.0] * 4 + [5.0]], "token-mean") == pytest.approx(1.8)


def test_masked_rows_are_in_neither_numerator_nor_denominator(token_batch_of):
    assert total([token_batch_of([4])], [[1.0] * 4], "token-mean") == 1.0
    assert total([token_batch_of([2])], [[2.0, 2.0]], "token-mean") == 2.0


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 10) / 4),
        ("seq-mean-token-mean", ((1 + 2 + 3) / 3 + 10) / 2),
        ("seq-mean-token-sum", (1 + 2 + 3 + 10) / 2),
        ("seq-mean-token-sum-norm", (1 + 2 + 3 + 10) / 8),
    ],
)
def test_each_mode_is_what_its_row_of_the_table_says(token_batch_of, mode, expected):
    batch = token_batch_of([3, 1], max_response_length=8)
    assert total([batch], [[1.0, 2.0, 3.0, 10.0]], mode) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("mode", AGG_MODES)
def test_no_mode_depends_on_the_split_into_micro_batches(token_batch_of, mode):
    step = {"tokens": 6, "sequences": 3, "max_response_length": 9}
    values = [1.0, 2.0, 3.0, 10.0, -1.0, 4.0]
    whole = total([token_batch_of([3, 1, 2], **step)], [values], mode)
    split = total([token_batch_of([3], **step), token_batch_of([1, 2], **step)], [values[:3], values[3:]], mode)
    assert whole == pytest.approx(split, rel=1e-12)


def test_micro_batch_normalization_reproduces_the_mean_of_means(token_batch_of):
    step = {"tokens": 5, "sequences": 2, "max_response_length": 4}
    two = [token_batch_of([4], **step), token_batch_of([1], **step)]
    assert total(two, [[1.0] * 4, [5.0]], "token-mean", "micro_batch") == pytest.approx(3.0)


@pytest.mark.parametrize("mode", AGG_MODES)
@pytest.mark.parametrize("normalization", ["component", "all", "micro_batch"])
def test_an_empty_micro_batch_has_no_weights_and_divides_by_nothing(token_batch_of, mode, normalization):
    empty = token_batch_of([], tokens=0, sequences=0)
    assert token_weights(empty, mode, normalization, torch.float32).tolist() == []


def test_weights_multiply_the_losses_but_not_the_denominators(token_batch_of):
    batch = token_batch_of([1, 1], weights=torch.tensor([3.0, 0.0]))
    assert total([batch], [[1.0, 1.0]], "token-mean") == 1.5


def test_unknown_modes_are_refused_by_name(token_batch_of):
    with pytest.raises(ConfigError, match="loss_agg_mode"):
        token_weights(token_batch_of([1]), "mean", "component", torch.float32)
    with pytest.raises(ConfigError, match="loss_normalization"):
        token_weights(token_batch_of([1]), "token-mean", "local", torch.float32)


def test_metric_sums_pool_means_and_keep_maxima():
    values = {"a": torch.tensor([1.0, 2.0]), "b_max": torch.tensor([1.0, 5.0, 2.0]), "empty": torch.zeros(0)}
    assert metric_sums(values) == {"a": (3.0, 2.0), "b_max": (5.0, 1.0)}
    assert metric_sums({}) == {}
