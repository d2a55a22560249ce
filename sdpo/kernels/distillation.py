"""The distillation loss from hidden states: both heads, divergence, weights and gradient in one pass over the tokens.

For a chunk of tokens: logits of student and teacher, the divergence and its gradient by the student's logits (in place
of the logits), the token weights, and two more products that carry the gradient on to the hidden states and the head.
Then the next chunk takes the same memory. The backward pass only hands out what is there already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sdpo.errors import ModelError, problem
from sdpo.kernels import chunk_terms
from sdpo.kernels.choice import distillation_terms
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.head import token_chunks, wide
from sdpo.kernels.head_gradient import HeadGradient
from sdpo.kernels.lazy_logits import LazyLogProbs, ResponseScores, TeacherScores


@dataclass
class TokenTerms:
    """Per response token, all [N] and constants."""

    divergence: torch.Tensor  # before weights and cap
    log_prob: torch.Tensor  # student's, of the sampled token
    entropy: torch.Tensor  # student's, nats
    teacher_entropy: torch.Tensor
    mass: torch.Tensor  # student's probability of the support; 1 unless mode is topk
    teacher_mass: torch.Tensor


@dataclass(frozen=True)
class Distillation:
    """loss = sum over tokens of token_weights * min(divergence, cap).

    token_weights(part, log_prob): constant weights [n] of the tokens `part`, given the student's log-probs [n].
    cap: of a token's whole divergence, in nats; a capped token has no gradient. None: no cap.
    times_one: the loss will be differentiated as it is, so that the gradient of the head can go to the student's
    `weight_gradient` at once. With another factor the backward pass raises RuntimeError.
    """

    divergence: Divergence
    token_weights: Callable[[slice, torch.Tensor], torch.Tensor]
    cap: float | None = None
    times_one: bool = False


def distillation_loss(
    student: ResponseScores, teacher: TeacherScores, response_ids: torch.Tensor, distillation: Distillation
) -> tuple[torch.Tensor, TokenTerms]:
    """Scalar loss over N response tokens (`response_ids` [N] int64), with a gradient to the student's hidden states,
    head and bias, and what there is to know about each token. Its backward pass can run once."""
    if student.vocab_size != teacher.vocab_size:
        fix = "student and teacher must share the tokenizer"
        raise ModelError(problem("teacher vocabulary", teacher.vocab_size, f"{student.vocab_size}, the student's", fix))
    inputs: tuple[torch.Tensor | None, ...] = (student.hidden, student.weight, student.bias)
    if not torch.is_grad_enabled():
        inputs = tuple(None if tensor is None else tensor.detach() for tensor in inputs)
    loss, *terms = _DistillationLoss.apply(*inputs, student, teacher, response_ids, distillation)
    return loss, TokenTerms(*terms)


class _DistillationLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple:
        """hidden, weight, bias; then the arguments of `distillation_loss`. Gives the loss and the TokenTerms."""
        student, teacher, ids, distillation = arguments[3:]
        ctx.gradient = HeadGradient(student, ctx.needs_input_grad[:3], distillation.times_one)
        loss, terms = _run(student, teacher, ids, distillation, ctx.gradient)
        ctx.mark_non_differentiable(*terms)
        return loss, *terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor, *unused: torch.Tensor) -> tuple:
        if ctx.gradient is None:
            raise RuntimeError("the distillation loss was differentiated before; its gradient is kept once")
        gradients, ctx.gradient = ctx.gradient.scaled(slope), None
        return *gradients, None, None, None, None


def _run(
    student: ResponseScores, teacher: TeacherScores, ids: torch.Tensor, how: Distillation, gradient: HeadGradient
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    tokens, width, dtype = ids.shape[0], student.vocab_size, wide(student.hidden.dtype)
    chunks = token_chunks(tokens, width, student.hidden)
    values = student.hidden.new_empty(chunk_terms.STATISTICS, tokens, dtype=dtype)
    loss = values.new_zeros(())
    few = isinstance(teacher, LazyLogProbs)  # then the formulas are few, and torch's
    buffers = values.new_empty(1 if few else 2, chunks[0].stop if chunks else 0, width)
    chunk_terms_ = chunk_terms.chunk_terms_ if few else distillation_terms(buffers)
    for part in chunks:
        size = part.stop - part.start
        p_logits = student.logits(part, buffers[0, :size])
        if isinstance(teacher, LazyLogProbs):
            said = teacher.at(part, ids[part], p_logits)
        else:
            said = teacher.logits(part, buffers[1, :size])
        values[:, part] = chunk_terms_(p_logits, said, ids[part], how.divergence, student.soft_cap)
        value, log_prob, factor = values[0, part], values[1, part], values[-1, part]
        weights = how.token_weights(part, log_prob).to(dtype)
        if how.cap is not None:
            loss += (weights * value.clamp(max=how.cap)).sum()
            weights = torch.where(value > how.cap, 0.0, weights)
        else:
            loss += (weights * value).sum()
        gradient.add(part, p_logits, weights * factor)
    return loss, values[:-1].unbind(0)
