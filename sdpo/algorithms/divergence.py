"""The divergence between student and teacher at every response token, with its gradient in closed form.

    alpha = 0      KL(teacher || student)                                   forward KL
    alpha = 1      KL(student || teacher)                                   reverse KL
    0 < alpha < 1  alpha KL(teacher || M) + (1 - alpha) KL(student || M)    generalized Jensen-Shannon
                   with M = (1 - alpha) student + alpha teacher

The end points are not the limits of the interior, which goes to 0 at both ends. No autograd graph over the vocabulary
is built: the forward pass computes the gradient with respect to the student's logits as well, chunk by chunk of tokens.
Derivations: docs/algorithm.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from sdpo.algorithms import support
from sdpo.algorithms.scores import Scores
from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, ModelError, problem

CHUNK_ENTRIES = 2**24  # logits of one chunk: 64 MiB in float32


@dataclass(frozen=True)
class Divergence:
    """What is compared. mode: full | topk | token; the other fields as in `SelfDistillationConfig`."""

    mode: str = "full"
    alpha: float = 0.5
    topk: int | None = None
    add_tail: bool = True
    support: str = "student"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(problem("self_distillation.alpha", self.alpha, "a number in [0, 1]"))
        if self.mode == "token" and self.alpha != 1.0:
            fix = "set alpha=1 or full_logit_distillation=true"
            raise ConfigError(problem("self_distillation.alpha", self.alpha, "1 for sampled-token distillation", fix))
        if self.mode == "topk" and (self.topk is None or self.topk < 1):
            raise ConfigError(problem("self_distillation.distillation_topk", self.topk, "null or at least 1"))
        if self.support not in ("student", "teacher", "union"):
            raise ConfigError(problem("self_distillation.support", self.support, "student, teacher or union"))

    @classmethod
    def from_config(cls, config: SelfDistillationConfig, temperature: float) -> Divergence:
        """`temperature` divides the logits of both sides."""
        mode = "token" if not config.full_logit_distillation else "full" if config.distillation_topk is None else "topk"
        topk = config.distillation_topk
        return cls(mode, config.alpha, topk, config.distillation_add_tail, config.support, temperature)

    def describe(self) -> str:
        """For example 'generalized Jensen-Shannon (alpha 0.5), student top-100 + tail'."""
        if self.mode == "token":
            return "reverse KL at the sampled token"
        names = {0.0: "forward KL, KL(teacher||student)", 1.0: "reverse KL, KL(student||teacher)"}
        name = names.get(self.alpha, f"generalized Jensen-Shannon (alpha {self.alpha:g})")
        if self.mode == "full":
            return f"{name}, whole vocabulary"
        return f"{name}, {self.support} top-{self.topk} {'+ tail' if self.add_tail else 'renormalised'}"


@dataclass
class TokenTerms:
    """Per response token, all [N]. Only `divergence` carries a gradient."""

    divergence: torch.Tensor
    log_prob: torch.Tensor  # student's, of the sampled token
    entropy: torch.Tensor  # student's, nats
    teacher_entropy: torch.Tensor
    mass: torch.Tensor  # student's probability of the support; 1 unless mode is topk
    teacher_mass: torch.Tensor


def token_terms(student: Scores, teacher: Scores, response_ids: torch.Tensor, divergence: Divergence) -> TokenTerms:
    """Everything a loss wants to know about N response tokens (`response_ids` [N] int64). The seam for faster kernels:
    callers never see logits."""
    if student.vocab_size != teacher.vocab_size:
        fix = "student and teacher must share the tokenizer"
        raise ModelError(problem("teacher vocabulary", teacher.vocab_size, f"{student.vocab_size}, the student's", fix))
    with torch.no_grad():
        teacher_logits = teacher.logits()
    return TokenTerms(*_TokenTerms.apply(student.logits(), teacher_logits, response_ids, divergence))


class _TokenTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence) -> tuple:
        """student, teacher: logits [N, V]; the outputs are the fields of `TokenTerms`."""
        tokens, width = student.shape
        values = student.new_empty(6, tokens)
        gradient = torch.empty_like(student) if ctx.needs_input_grad[0] else None
        size = max(1, CHUNK_ENTRIES // width)
        for start in range(0, tokens, size):
            part = slice(start, start + size)
            values[:, part], slope = _chunk(student[part], teacher[part], ids[part], spec)
            if gradient is not None:
                gradient[part] = slope.div_(spec.temperature)
        ctx.save_for_backward(gradient)
        outputs = values.unbind(0)
        ctx.mark_non_differentiable(*outputs[1:])
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: torch.Tensor, *unused: torch.Tensor) -> tuple:
        (gradient,) = ctx.saved_tensors
        return gradient * slope[:, None], None, None, None


def _chunk(student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence) -> tuple:
    """Fields of `TokenTerms` [6, n] and the gradient [n, V] with respect to the student's logits *over temperature*."""
    log_p = torch.log_softmax(student / spec.temperature, -1)
    log_q = torch.log_softmax(teacher / spec.temperature, -1)
    p, q = log_p.exp(), log_q.exp()
    log_prob = log_p.gather(-1, ids[:, None])[:, 0]
    mass = teacher_mass = torch.ones_like(log_prob)
    if spec.mode == "token":
        value, slope = _sampled_token(log_p, log_q, p, ids)
    elif spec.mode == "full":
        value = distribution_divergence(log_p, log_q, spec.alpha)
        slope = _through_softmax(divergence_slope(log_p, log_q, spec.alpha), p)
    else:
        value, slope, mass, teacher_mass = _restricted(log_p, log_q, p, spec)
    entropies = -expectation(p, log_p), -expectation(q, log_q)
    return torch.stack([value, log_prob, *entropies, mass, teacher_mass]), slope


def expectation(probs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum of probs * values over the last axis; an impossible category adds 0 whatever its (infinite) value."""
    return torch.where(probs > 0, probs * values, 0.0).sum(-1)


def distribution_divergence(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float) -> torch.Tensor:
    """Divergence [...] of student log-probs `log_p` and teacher log-probs `log_q`, both [..., C]; formulas: module."""
    if alpha == 0.0:
        return expectation(log_q.exp(), log_q - log_p)
    if alpha == 1.0:
        return expectation(log_p.exp(), log_p - log_q)
    log_m = log_mixture(log_p, log_q, alpha)
    return alpha * expectation(log_q.exp(), log_q - log_m) + (1.0 - alpha) * expectation(log_p.exp(), log_p - log_m)


def log_mixture(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float) -> torch.Tensor:
    """log((1 - alpha) p + alpha q)."""
    return torch.logaddexp(log_p + math.log1p(-alpha), log_q + math.log(alpha))


def divergence_slope(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float) -> torch.Tensor:
    """Derivative of `distribution_divergence` with respect to each log_p, for categories that sum to one.

    For the mixture the terms through M cancel: (alpha q + (1 - alpha) p) / M = 1. For the reverse KL the term p is left
    out: normalisation removes it, and adding it would cost float32 its digits where student and teacher nearly agree.
    """
    if alpha == 0.0:
        return -log_q.exp()
    p = log_p.exp()
    base = log_q if alpha == 1.0 else log_mixture(log_p, log_q, alpha)
    share = 1.0 if alpha == 1.0 else 1.0 - alpha
    return torch.where(p > 0, share * p * (log_p - base), 0.0)


def _through_softmax(slope: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """From the derivative by log-probs to the derivative by logits."""
    return slope - p * slope.sum(-1, keepdim=True)


def _sampled_token(log_p: torch.Tensor, log_q: torch.Tensor, p: torch.Tensor, ids: torch.Tensor) -> tuple:
    """Score-function form of the reverse KL: detached log-ratio times log p at the sampled token."""
    at = ids[:, None]
    own = log_p.gather(-1, at)
    ratio = own - log_q.gather(-1, at)
    slope = (-p * ratio).scatter_add_(-1, at, ratio)
    return (ratio * own)[:, 0], slope


def _restricted(log_p: torch.Tensor, log_q: torch.Tensor, p: torch.Tensor, spec: Divergence) -> tuple:
    """Value, gradient by logits, student mass and teacher mass of the top-k form."""
    ids, counted = support.choose_support(log_p, log_q, spec.topk, spec.support)
    inside_p = support.gather_log_probs(log_p, ids, counted)
    inside_q = support.gather_log_probs(log_q, ids, counted)
    close = support.with_tail if spec.add_tail else support.renormalised
    categories_p, categories_q = close(inside_p), close(inside_q)
    value = distribution_divergence(categories_p, categories_q, spec.alpha)
    slope = divergence_slope(categories_p, categories_q, spec.alpha)
    slope = _through_tail(slope, inside_p, spec.alpha) if spec.add_tail else _through_softmax(slope, categories_p.exp())
    gradient = (-p * slope.sum(-1, keepdim=True)).scatter_add_(-1, ids, slope)
    return value, gradient, inside_p.exp().sum(-1), inside_q.exp().sum(-1)


def _through_tail(slope: torch.Tensor, inside_p: torch.Tensor, alpha: float) -> torch.Tensor:
    """[n, K + 1] -> [n, K]: moves the tail's derivative to the entries whose mass it depends on.

    d log(tail) / d log p_i = -p_i / tail. Where the formula is clamped the tail is a constant, and the categories no
    longer sum to one: the term that `divergence_slope` leaves out comes back.
    """
    log_inside = torch.logsumexp(inside_p, -1, keepdim=True)
    tail = -torch.expm1(log_inside.clamp(max=support.TAIL_LIMIT))
    through_tail = -slope[:, -1:] / tail
    clamped = 1.0 if alpha == 1.0 else 0.0
    return slope[:, :-1] + inside_p.exp() * torch.where(log_inside <= support.TAIL_LIMIT, through_tail, clamped)
