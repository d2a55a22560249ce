"""Log-probabilities and entropy of the policy at its response tokens, at the temperature it was sampled with."""

from __future__ import annotations

import torch

from sdpo.algorithms.scores import Scores


def loss_temperature(rollout_temperature: float) -> float:
    """What divides the logits in a loss. Greedy sampling (0) has no density of its own: the plain softmax is used."""
    return rollout_temperature if rollout_temperature > 0 else 1.0


def policy_terms(
    scores: Scores, response_ids: torch.Tensor, temperature: float, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each sampled token [N] (differentiable) and entropy in nats [N] (on request too).

    response_ids: [N] int64. The temperature is applied here and nowhere else.
    """
    log_p = torch.log_softmax(scores.logits() / loss_temperature(temperature), -1)
    log_prob = log_p.gather(-1, response_ids[:, None])[:, 0]
    with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
        possible = log_p.masked_fill(log_p == -torch.inf, 0.0)  # not 0 * inf, in the gradient neither
        entropy = -(log_p.exp() * possible).sum(-1)
    return log_prob, entropy
