"""Logits that are never all there: hidden states and the head they are multiplied with, a few tokens at a time.

Everything is flat over the N response tokens of a micro-batch: no padding, no prompt positions, no shift left to do.
The logits at index n are the model's output at the position *before* the n-th response token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from sdpo.errors import ModelError, problem
from sdpo.kernels.chunk_terms import LogProbs
from sdpo.kernels.head import head_product, wide

ALL = slice(None)
IMPOSSIBLE = -1e30  # a logit of -inf, so that its probability of 0 times its logit is 0


class LazyLogits(Protocol):
    """Anything that can say the logits of N positions: the student, a teacher, a mixture of two teachers."""

    @property
    def vocab_size(self) -> int: ...

    def logits(self, part: slice = ALL, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, vocab_size] of the n tokens in `part`, before the temperature; a constant, written into `out` if given.
        float32 (float64 if computed in float64)."""
        ...


@runtime_checkable
class LazyLogProbs(Protocol):
    """A teacher that hands out log-probs at a few ids instead: all that top-k and sampled-token modes look at.

    sampled: [N], of the sampled tokens; known where `at` has been."""

    sampled: torch.Tensor

    @property
    def vocab_size(self) -> int: ...

    def at(self, part: slice, ids: torch.Tensor, student_logits: torch.Tensor) -> LogProbs:
        """Of the n tokens `ids` in `part`, where the student's logits are [n, vocab_size]: its top-k may be asked."""
        ...


TeacherScores = LazyLogits | LazyLogProbs


@dataclass
class ResponseScores:
    """Hidden states at the response positions together with the output head that turns them into logits.

    hidden: [N, H], or already the logits [N, at least vocab_size] when `weight` is None (-inf: impossible).
    weight: [at least vocab_size, H] or None. bias: [at least vocab_size] or None. Any tensors of an autograd graph.
    vocab_size: size of the tokenizer; rows of the head beyond it are padding and take no probability.
    scale, soft_cap: logits = soft_cap * tanh(scale * raw / soft_cap), for model families that have them.
    weight_gradient: `weight.grad` where a loss may add to it without autograd, so that no second tensor of this size is
    needed (`distillation_loss` on request, `policy_terms` always).
    """

    hidden: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    vocab_size: int
    scale: float = 1.0
    soft_cap: float | None = None
    weight_gradient: torch.Tensor | None = None

    def __post_init__(self) -> None:
        width = self.hidden.shape[-1] if self.weight is None else self.weight.shape[0]
        if width < self.vocab_size:
            allowed, fix = f"at least {self.vocab_size}, the tokenizer's", "use the tokenizer the model was made with"
            raise ModelError(problem("width of the output head", width, allowed, fix))

    @torch.no_grad()
    def logits(self, part: slice = ALL, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `LazyLogits`. Losses differentiate by formula (`head_gradient`), so no graph is made."""
        hidden = self.hidden[part]
        if out is None:
            out = hidden.new_empty(hidden.shape[0], self.vocab_size, dtype=wide(hidden.dtype))
        if self.weight is None:
            out.copy_(hidden[:, : self.vocab_size]).clamp_(min=IMPOSSIBLE)
            if self.scale != 1.0:
                out.mul_(self.scale)
        else:
            self.add_product(out, part, 1.0, beta=0.0)
        if self.soft_cap is not None:
            out.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return out

    def add_product(self, out: torch.Tensor, part: slice, share: float, beta: float = 1.0) -> torch.Tensor:
        """out [n, V] = beta * out + share * scaled logits before the soft cap, in the matrix product itself."""
        assert self.weight is not None  # or `hidden` would be the product
        vocab = slice(0, self.vocab_size)
        bias = None if self.bias is None else self.bias[vocab]
        return head_product(self.hidden[part], self.weight[vocab], bias, out, self.scale * share, beta)


@dataclass
class InterpolatedScores:
    """The trust-region teacher: logits = (1 - rate) * reference + rate * current, both given the same reprompt."""

    reference: LazyLogits
    current: ResponseScores
    rate: float

    @property
    def vocab_size(self) -> int:
        return self.reference.vocab_size

    @torch.no_grad()
    def logits(self, part: slice = ALL, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `LazyLogits`. No second tensor of this size, unless the current teacher's logits are capped or given."""
        out = self.reference.logits(part, out)
        current, rate = self.current, self.rate
        if current.weight is None or current.soft_cap is not None:
            return out.lerp_(current.logits(part), rate)
        out.mul_(1.0 - rate)
        return current.add_product(out, part, rate)
