"""What passes between the actor and an algorithm: scores of response tokens in, one scalar loss and its statistics out.

Everything is flat over the N response tokens of a micro-batch: no padding, no prompt positions, no shift left to do.
The score at index n is the model's output at the position *before* `response_ids[n]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import torch

from sdpo.algorithms.head import head_product, wide
from sdpo.errors import ModelError, problem

if TYPE_CHECKING:
    from sdpo.records import Group, RoutedRows

ALL = slice(None)
IMPOSSIBLE = -1e30  # a logit of -inf, so that its probability of 0 times its logit is 0


class Scores(Protocol):
    """Anything that can say the logits of N positions: the student, a teacher, a mixture of two teachers."""

    vocab_size: int

    def logits(self, part: slice = ALL, out: torch.Tensor | None = None) -> torch.Tensor:
        """[n, vocab_size] of the n tokens in `part`, before the temperature; a constant, written into `out` if given.
        float32 (float64 if computed in float64)."""
        ...


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
        """See `Scores`. Losses differentiate by formula (`head.HeadGradient`), so no graph is made."""
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
        vocab = slice(0, self.vocab_size)
        bias = None if self.bias is None else self.bias[vocab]
        return head_product(self.hidden[part], self.weight[vocab], bias, out, self.scale * share, beta)


@dataclass
class InterpolatedScores:
    """The trust-region teacher: logits = (1 - rate) * reference + rate * current, both given the same reprompt."""

    reference: ResponseScores
    current: ResponseScores
    rate: float

    @property
    def vocab_size(self) -> int:
        return self.reference.vocab_size

    @torch.no_grad()
    def logits(self, part: slice = ALL, out: torch.Tensor | None = None) -> torch.Tensor:
        """See `Scores`. No second tensor of this size, unless the current teacher's logits are capped or given."""
        out = self.reference.logits(part, out)
        current, rate = self.current, self.rate
        if current.weight is None or current.soft_cap is not None:
            return out.lerp_(current.logits(part), rate)
        out.mul_(1.0 - rate)
        return current.add_product(out, part, rate)


@dataclass
class TokenBatch:
    """N policy tokens of the R rows in one micro-batch, with the denominators of the whole optimizer step: all of them,
    or those that one component of the loss is about.

    Log-probabilities are natural logs at the rollout temperature. `tokens` and `sequences` count all micro-batches and
    all ranks, so that losses and gradients of micro-batches simply add up. A rank with nothing to do passes N = R = 0.

    Example, two rows "a b c" and "d" of a step that has a third row of two tokens elsewhere:
    response_ids [a, b, c, d], row [0, 0, 0, 1], row_lengths [3, 1], weights [1, 1, 1, 1], tokens 6, sequences 3.
    """

    response_ids: torch.Tensor  # [N] int64
    row: torch.Tensor  # [N] int64, values in [0, R)
    row_lengths: torch.Tensor  # [R] int64, tokens of the row's sequence; also those in other rows of the same sample
    weights: torch.Tensor  # [N] float, multiplies the token losses (not the denominators)
    tokens: int  # denominator of token-mean
    sequences: int  # denominator of the seq-mean modes
    max_response_length: int  # tokens; normaliser of seq-mean-token-sum-norm
    old_log_probs: torch.Tensor | None = None  # [N] float32, policy at the start of the update; None: the current
    sampler_log_probs: torch.Tensor | None = None  # [N] float32, from the inference engine; None: not recorded
    advantages: torch.Tensor | None = None  # [N] float32
    micro_batches: torch.Tensor | None = None  # [R, 3] float64, each row's `MicroBatchShare`; None: all rows are of one
    places: torch.Tensor | None = None  # [N] int64, where they are among all policy tokens; None: those are all

    def part(self, tokens: slice) -> TokenBatch:
        """Some of the N tokens; rows and denominators stay."""
        chosen = {name: getattr(self, name) for name in ("response_ids", "row", "old_log_probs", "sampler_log_probs")}
        return replace(self, **{name: value[tokens] for name, value in chosen.items() if value is not None})

    def of(self, student: ResponseScores) -> ResponseScores:
        """The scores of these tokens, given those of all policy tokens."""
        if self.places is None:
            return student
        return replace(student, hidden=student.hidden.index_select(0, self.places))


@dataclass
class LossBatch:
    """What the loss needs to know about one micro-batch: all its policy tokens, and those of each component that any
    row carries. The teacher scores the tokens of `distillation`, in that order."""

    all: TokenBatch
    policy_gradient: TokenBatch | None = None
    distillation: TokenBatch | None = None
    cross_entropy: TokenBatch | None = None


@dataclass
class LossOutput:
    """`loss` is this micro-batch's share of the step's loss (already divided by the denominators of the step): call
    backward on it, add over micro-batches and ranks. Where ranks *average* gradients, multiply by their number first.

    `metrics[name]` is (sum, count): add both over micro-batches and ranks, then divide. A name that ends in `_max` is
    reduced by the maximum of its first entry instead; its count is 1 (0 when there was no token).
    """

    loss: torch.Tensor  # scalar
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)


class Algorithm(Protocol):
    """One algorithm, on the controller: which samples are trained on, and with which components of the loss."""

    def describe(self) -> str:
        """One line for the log: what is optimised."""
        ...

    def route(self, groups: list[Group], step: int) -> RoutedRows:
        """Graded groups of one rollout batch -> rows with their components."""
        ...
