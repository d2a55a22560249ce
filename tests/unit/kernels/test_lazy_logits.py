from __future__ import annotations

import pytest
import torch

from sdpo.errors import ModelError
from sdpo.kernels.lazy_logits import InterpolatedScores, ResponseScores


def test_head_is_cut_to_the_tokenizer_and_computed_in_float32():
    hidden, weight, bias = torch.randn(3, 4).bfloat16(), torch.randn(8, 4).bfloat16(), torch.randn(8).bfloat16()
    logits = ResponseScores(hidden, weight, bias, vocab_size=6).logits()
    assert logits.shape == (3, 6) and logits.dtype == torch.float32
    torch.testing.assert_close(logits, (hidden @ weight.T + bias)[:, :6].float(), rtol=2e-2, atol=2e-2)


def test_float64_stays_float64_and_given_logits_are_taken_as_they_are():
    logits = torch.randn(2, 5, dtype=torch.float64)
    assert torch.equal(ResponseScores(logits, None, None, 4).logits(), logits[:, :4])


def test_scale_and_soft_cap_are_applied_in_that_order():
    logits = torch.tensor([[1.0, 100.0]])
    capped = ResponseScores(logits, None, None, 2, scale=2.0, soft_cap=30.0).logits()
    torch.testing.assert_close(capped, 30.0 * torch.tanh(torch.tensor([[2.0, 200.0]]) / 30.0))


def test_a_head_narrower_than_the_tokenizer_is_refused():
    with pytest.raises(ModelError, match="output head"):
        ResponseScores(torch.zeros(1, 3), None, None, 5)


def test_trust_region_teacher_interpolates_logits():
    reference = ResponseScores(torch.tensor([[0.0, 4.0]]), None, None, 2)
    current = ResponseScores(torch.tensor([[8.0, 0.0]]), None, None, 2)
    assert InterpolatedScores(reference, current, 0.25).logits().tolist() == [[2.0, 3.0]]
    assert InterpolatedScores(reference, current, 0.25).vocab_size == 2
