"""What passes between the actor and a loss: the tokens of a micro-batch in, one scalar and its statistics out.

Everything is flat over the N response tokens of a micro-batch, in the order of the student's logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from sdpo.kernels.lazy_logits import ResponseScores


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
    reference_log_probs: torch.Tensor | None = None  # [N] float32, of the policy that the run started from; None: no KL
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
