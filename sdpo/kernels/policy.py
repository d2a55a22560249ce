"""Log-probabilities and entropy of the policy at its response tokens, at the temperature it was sampled with.

A few tokens at a time, like the distillation loss. What the loss makes of a log-prob is known only after all of them,
so the backward pass computes the logits once more instead of keeping tokens x vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sdpo.kernels.choice import softmax_terms
from sdpo.kernels.chunk_terms import Softmax
from sdpo.kernels.head import row_blocks, through_soft_cap, token_chunks, wide
from sdpo.kernels.head_gradient import HeadGradient
from sdpo.kernels.lazy_logits import ResponseScores


def loss_temperature(rollout_temperature: float) -> float:
    """What divides the logits in a loss. Greedy sampling (0) has no density of its own: the plain softmax is used."""
    return rollout_temperature if rollout_temperature > 0 else 1.0


def policy_terms(
    scores: ResponseScores, response_ids: torch.Tensor, temperature: float, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-prob of each sampled token [N] (differentiable) and entropy in nats [N] (on request too).

    response_ids: [N] int64. The temperature is applied here and nowhere else.
    """
    policy = _Policy(scores, response_ids, loss_temperature(temperature))
    return _PolicyTerms.apply(scores.hidden, scores.weight, scores.bias, policy, entropy_gradient)


@dataclass(frozen=True)
class _Policy:
    scores: ResponseScores
    ids: torch.Tensor
    temperature: float

    def terms(self) -> torch.Tensor:
        """Log-prob and entropy, [2, N]."""
        values = self.scores.hidden.new_empty(2, self.ids.shape[0], dtype=wide(self.scores.hidden.dtype))
        for part, logits in self._chunks():
            own, entropy = softmax_terms(logits).softmax_(logits, self.temperature)
            values[:, part] = torch.cat([own.log_probs(self.ids[part, None]), entropy], -1).T
        return values

    def gradient(
        self,
        wanted: tuple[bool, ...],
        entropy: torch.Tensor,
        by_log_prob: torch.Tensor,
        by_entropy: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        """By hidden states, head and bias. entropy: as found by `terms`; by_log_prob, by_entropy: derivatives [N] of
        the loss; None: it does not depend on the entropy."""
        total, cap = HeadGradient(self.scores, wanted, in_place=True), self.scores.soft_cap
        ones = torch.ones_like(by_log_prob) / self.temperature
        for part, logits in self._chunks():
            plain = cap is None and by_entropy is None  # else a second tensor like the logits is needed
            for rows in [slice(0, len(logits))] if plain else row_blocks(logits):
                here = slice(part.start + rows.start, part.start + rows.stop)
                ids, column = self.ids[here, None], by_log_prob[here, None]
                with through_soft_cap(logits[rows], cap) as slope:
                    terms = softmax_terms(slope)
                    own, _ = terms.softmax_(slope, self.temperature)
                    if by_entropy is None:
                        terms.through_softmax_(own, ids, column)
                    else:
                        _through_entropy_(own, entropy[here, None], by_entropy[here, None], column)
                        slope.scatter_add_(-1, ids, column)
            total.add(part, logits, ones[part])
        return total.scaled()

    def _chunks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """(tokens, their logits); the next chunk takes the same memory."""
        width, hidden = self.scores.vocab_size, self.scores.hidden
        chunks = token_chunks(self.ids.shape[0], width, hidden, sides=1)
        if chunks:
            buffer = hidden.new_empty(chunks[0].stop, width, dtype=wide(hidden.dtype))
        for part in chunks:
            yield part, self.scores.logits(part, buffer[: part.stop - part.start])


def _through_entropy_(own: Softmax, entropy: torch.Tensor, by_entropy: torch.Tensor, by_log_prob: torch.Tensor) -> None:
    """Replaces the logits by the derivative by them times the temperature, but for what the sampled tokens add; [n, 1]
    each. By the entropy: -p (log p + entropy)."""
    slope = own.logits.sub_(own.top).mul_(own.warmth)
    exps = slope.exp()
    slope.add_(entropy - own.z.log()).mul_(-by_entropy / own.z).sub_(by_log_prob / own.z).mul_(exps)


class _PolicyTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """hidden, weight, bias; then the policy and whether the entropy has a gradient."""
        ctx.policy, ctx.entropy_gradient = arguments[3:]
        log_prob, entropy = ctx.policy.terms()
        ctx.save_for_backward(entropy)
        if not ctx.entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return log_prob, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_log_prob: torch.Tensor, by_entropy: torch.Tensor) -> tuple:
        (entropy,) = ctx.saved_tensors
        by_entropy = by_entropy if ctx.entropy_gradient else None
        return *ctx.policy.gradient(ctx.needs_input_grad[:3], entropy, by_log_prob, by_entropy), None, None
