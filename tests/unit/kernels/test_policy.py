from __future__ import annotations

import math

import pytest
import torch

from sdpo.kernels.policy import policy_terms


def test_temperature_divides_the_logits_exactly_once(scores_of):
    log_prob, _ = policy_terms(scores_of(torch.tensor([[2.0, 0.0]])), torch.tensor([0]), 0.5)
    assert log_prob.item() == pytest.approx(-0.018150, abs=1e-5)


def test_temperature_zero_is_finite(scores_of):
    log_prob, entropy = policy_terms(scores_of(torch.tensor([[2.0, 0.0]])), torch.tensor([0]), 0.0)
    assert log_prob.item() == pytest.approx(-0.126928, abs=1e-5)
    assert math.isfinite(entropy.item())


def test_each_token_is_scored_by_the_logits_given_for_it(scores_of):
    ids = torch.tensor([1, 2, 0])
    logits = 10.0 * torch.nn.functional.one_hot(ids, 3).float()
    assert policy_terms(scores_of(logits), ids, 1.0)[0].min() > -0.01


def test_entropy_is_exact_and_carries_a_gradient_only_on_request(scores_of):
    logits = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    assert policy_terms(scores_of(logits), torch.tensor([0]), 1.0)[1].item() == pytest.approx(math.log(2))
    assert not policy_terms(scores_of(logits), torch.tensor([0]), 1.0)[1].requires_grad
    leaf = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
    policy_terms(scores_of(leaf), torch.tensor([0]), 1.0, entropy_gradient=True)[1].sum().backward()
    assert leaf.grad[0, 0] < 0 < leaf.grad[0, 1]
    assert leaf.grad[0, 2] == 0
