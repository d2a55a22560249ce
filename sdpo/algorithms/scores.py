"""What passes between the actor and an algorithm: scores of response tokens in, one scalar loss and its statistics out.

Everything is flat over the N response tokens of a micro-batch: no padding, no prompt positions, no shift left to do.
The score at index n is the model's output at the position *before* `response_ids[n]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from sdpo.errors import ModelError, problem

if TYPE_CHECKING:
    from sdpo.records import Group, TrainBatch


class Scores(Protocol):
    """Anything that can say the logits of N positions: the student, a teacher, a mixture of two teachers."""

    vocab_size: int

    def logits(self) -> torch.Tensor:
        """[N, vocab_size], float32 (float64 if computed in float64), before the temperature."""
        ...


@dataclass
class ResponseScores:
    """Hidden states at the response positions together with the output head that turns them into logits.

    hidden: [N, H], or already the logits [N, at least vocab_size] when `weight` is None.
    weight: [at least vocab_size, H] or None. bias: [at least vocab_size] or None.
    vocab_size: size of the tokenizer; rows of the head beyond it are padding and take no probability.
    scale, soft_cap: logits = soft_cap * tanh(scale * raw / soft_cap), for model families that have them.
    """

    hidden: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    vocab_size: int
    scale: float = 1.0
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        width = self.hidden.shape[-1] if self.weight is None else self.weight.shape[0]
        if width < self.vocab_size:
            allowed, fix = f"at least {self.vocab_size}, the tokenizer's", "use the tokenizer the model was made with"
            raise ModelError(problem("width of the output head", width, allowed, fix))

    def logits(self) -> torch.Tensor:
        """[N, vocab_size] in float32 (float64 when `hidden` is), carrying the gradient to hidden, weight and bias."""
        if self.weight is None:
            logits = self.hidden[..., : self.vocab_size]
        else:
            bias = None if self.bias is None else self.bias[: self.vocab_size]
            logits = torch.nn.functional.linear(self.hidden, self.weight[: self.vocab_size], bias)
        if logits.dtype != torch.float64:
            logits = logits.float()
        if self.scale != 1.0:
            logits = logits * self.scale
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        return logits


@dataclass
class InterpolatedScores:
    """The trust-region teacher: logits = (1 - rate) * reference + rate * current, both given the same reprompt."""

    reference: ResponseScores
    current: ResponseScores
    rate: float

    @property
    def vocab_size(self) -> int:
        return self.reference.vocab_size

    def logits(self) -> torch.Tensor:
        return torch.lerp(self.reference.logits(), self.current.logits(), self.rate)


@dataclass
class TokenBatch:
    """The N response tokens of the R rows in one micro-batch, with the denominators of the whole optimizer step.

    Log-probabilities are natural logs at the rollout temperature. `tokens` and `sequences` count all micro-batches and
    all ranks, so that losses and gradients of micro-batches simply add up. A rank with nothing to do passes N = R = 0.

    Example, two rows "a b c" and "d" of a step that has a third row of two tokens elsewhere:
    response_ids [a, b, c, d], row [0, 0, 0, 1], row_lengths [3, 1], weights [1, 1], tokens 6, sequences 3.
    """

    response_ids: torch.Tensor  # [N] int64
    row: torch.Tensor  # [N] int64, values in [0, R)
    row_lengths: torch.Tensor  # [R] int64, response tokens of each row
    weights: torch.Tensor  # [R] float, multiplies the row's token losses (not the denominators)
    tokens: int  # denominator of token-mean
    sequences: int  # denominator of the seq-mean modes
    max_response_length: int  # tokens; normaliser of seq-mean-token-sum-norm
    old_log_probs: torch.Tensor | None = None  # [N] float32, policy at the start of the update; None: the current
    sampler_log_probs: torch.Tensor | None = None  # [N] float32, from the inference engine; None: not recorded
    advantages: torch.Tensor | None = None  # [R] float32


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
    """One algorithm: text and tokens on the controller (`build_batch`), tensors in the worker (`loss`)."""

    needs_teacher: bool  # does `loss` want teacher scores

    def describe(self) -> str:
        """One line for the log: what is optimised."""
        ...

    def needs_old_log_probs(self, num_optimizer_steps: int) -> bool:
        """Whether `TokenBatch.old_log_probs` must be computed when one rollout batch makes that many optimizer steps.
        With a single step the old policy is the current one and no forward pass is spent on it."""
        ...

    def build_batch(self, groups: list[Group], step: int) -> TrainBatch:
        """Graded groups of one rollout batch -> mini-batches of rows that carry a signal."""
        ...

    def loss(self, student: Scores, teacher: Scores | None, batch: TokenBatch) -> LossOutput:
        """Loss of one micro-batch; an empty one gives 0 with a graph, so that every rank can join the backward."""
        ...
