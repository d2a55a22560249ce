"""The divergence between student and teacher at every response token, with its gradient in closed form.

    alpha = 0      KL(teacher || student)                                   forward KL
    alpha = 1      KL(student || teacher)                                   reverse KL
    0 < alpha < 1  alpha KL(teacher || M) + (1 - alpha) KL(student || M)    generalized Jensen-Shannon
                   with M = (1 - alpha) student + alpha teacher

The end points are not the limits of the interior, which goes to 0 at both ends. No autograd graph is built: a few
tokens at a time, the student's logits are turned into the gradient with respect to them, in place. Which tokens, and
what becomes of the gradient: distillation.py. Derivations: docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sdpo.algorithms import support
from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, problem

IMPOSSIBLE = -1e30  # log-prob of an entry whose logit is -inf: 0 * IMPOSSIBLE is 0
RATIO_LIMIT = 80.0  # of log q - log p, either way, beside a mixture: beyond, the mixture is one side alone
INFINITE = 1e6  # nats; a divergence above met an impossible entry


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


def token_terms_(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence, scratch: torch.Tensor
) -> torch.Tensor:
    """Statistics [6, n] of n tokens: divergence, log-prob of the sampled token, entropy of student and of teacher, mass
    of student and of teacher inside the support (1 unless mode is topk).

    student, teacher: logits [n, V]; `student` becomes the gradient of the divergence with respect to itself, `teacher`
    is used up. ids: [n] int64. scratch: [3, n, V]. All of one floating dtype but the ids.
    """
    p, q, spare = scratch
    log_p, log_q = log_softmax_(student, spec.temperature, p), log_softmax_(teacher, spec.temperature, q)
    log_prob = log_p.gather(-1, ids[:, None])[:, 0]
    entropies = -_dot(p, log_p, spare), -_dot(q, log_q, spare)
    mass = teacher_mass = torch.ones_like(log_prob)
    if spec.mode == "token":
        value = _sampled_token_(log_p, log_q, p, ids)
    elif spec.mode == "full":
        value = _whole_vocabulary_(log_p, log_q, p, q, spec.alpha, spare)
    else:
        value, mass, teacher_mass = _restricted_(log_p, log_q, p, spec)
    if spec.temperature != 1.0:
        student.div_(spec.temperature)
    value.masked_fill_(value > INFINITE, torch.inf)
    return torch.stack([value, log_prob, *entropies, mass, teacher_mass])


def log_softmax_(logits: torch.Tensor, temperature: float, probs: torch.Tensor) -> torch.Tensor:
    """logits [n, V] -> log-probs, in place; `probs` [n, V] is set to the probabilities. One exponential per entry."""
    if temperature != 1.0:
        logits.div_(temperature)
    logits.sub_(logits.amax(-1, keepdim=True))
    torch.exp(logits, out=probs)
    total = probs.sum(-1, keepdim=True)
    probs.div_(total)
    return logits.sub_(total.log_()).clamp_(min=IMPOSSIBLE)


def _dot(a: torch.Tensor, b: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """Sum of a * b over the last axis, in pairs: a plain dot product of a whole vocabulary loses digits."""
    return torch.mul(a, b, out=spare).sum(-1)


def _whole_vocabulary_(
    log_p: torch.Tensor, log_q: torch.Tensor, p: torch.Tensor, q: torch.Tensor, alpha: float, spare: torch.Tensor
) -> torch.Tensor:
    """Divergence [n] over all entries; log_p becomes the gradient by the student's logits over the temperature."""
    if alpha == 0.0:
        value = _dot(q, log_q.sub_(log_p), spare)
        torch.sub(p, q, out=log_p)
        return value
    if alpha == 1.0:
        value = _dot(p, log_p.sub_(log_q), spare)
        log_p.sub_(value[:, None]).mul_(p)
        return value
    ratio = log_q.sub_(log_p)
    log_m = torch.expm1(ratio.clamp_(-RATIO_LIMIT, RATIO_LIMIT), out=spare).mul_(alpha).log1p_()  # minus log p
    from_student = -torch.mul(p, log_m, out=log_p).sum(-1)
    from_teacher = ratio.sub_(log_m).mul_(q).sum(-1)
    log_p.add_(p.mul_(from_student[:, None])).mul_(alpha - 1.0)
    return alpha * from_teacher + (1.0 - alpha) * from_student


def _sampled_token_(log_p: torch.Tensor, log_q: torch.Tensor, p: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Score-function form of the reverse KL: detached log-ratio times log p at the sampled token."""
    at = ids[:, None]
    own = log_p.gather(-1, at)
    ratio = own - log_q.gather(-1, at)
    torch.mul(p, -ratio, out=log_p).scatter_add_(-1, at, ratio)
    return (ratio * own)[:, 0]


def _restricted_(log_p: torch.Tensor, log_q: torch.Tensor, p: torch.Tensor, spec: Divergence) -> tuple:
    """Value, student mass and teacher mass [n] of the top-k form; log_p becomes the gradient as above."""
    ids, counted = support.choose_support(log_p, log_q, spec.topk, spec.support)
    inside_p = support.gather_log_probs(log_p, ids, counted)
    inside_q = support.gather_log_probs(log_q, ids, counted)
    close = support.with_tail if spec.add_tail else support.renormalised
    categories_p, categories_q = close(inside_p), close(inside_q)
    value = distribution_divergence(categories_p, categories_q, spec.alpha)
    slope = divergence_slope(categories_p, categories_q, spec.alpha)
    if spec.add_tail:
        slope = _through_tail(slope, inside_p, spec.alpha)
    else:
        slope = slope - categories_p.exp() * slope.sum(-1, keepdim=True)
    torch.mul(p, -slope.sum(-1, keepdim=True), out=log_p).scatter_add_(-1, ids, slope)
    return value, inside_p.exp().sum(-1), inside_q.exp().sum(-1)


def expectation(probs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum of probs * values over the last axis; an impossible category adds 0 whatever its (infinite) value."""
    return torch.where(probs > 0, probs * values, 0.0).sum(-1)


def distribution_divergence(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float) -> torch.Tensor:
    """Divergence [...] of student log-probs `log_p` and teacher log-probs `log_q`, both [..., C]; formulas: module."""
    if alpha == 0.0:
        return expectation(log_q.exp(), log_q - log_p)
    if alpha == 1.0:
        return expectation(log_p.exp(), log_p - log_q)
    log_m = _log_mixture(log_p, log_q, alpha)
    from_teacher = expectation(log_q.exp(), (log_q - log_p).clamp(-RATIO_LIMIT, RATIO_LIMIT) - log_m)
    return alpha * from_teacher - (1.0 - alpha) * expectation(log_p.exp(), log_m)


def _log_mixture(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float) -> torch.Tensor:
    """log M - log p. From the ratio alone: where student and teacher nearly agree, the difference of two logarithms has
    no digits left in float32."""
    return (log_q - log_p).clamp(-RATIO_LIMIT, RATIO_LIMIT).expm1().mul(alpha).log1p()


def divergence_slope(log_p: torch.Tensor, log_q: torch.Tensor, alpha: float) -> torch.Tensor:
    """Derivative of `distribution_divergence` with respect to each log_p, for categories that sum to one.

    For the mixture the terms through M cancel: (alpha q + (1 - alpha) p) / M = 1. For the reverse KL the term p is left
    out: normalisation removes it, and adding it would cost float32 its digits where student and teacher nearly agree.
    """
    if alpha == 0.0:
        return -log_q.exp()
    p = log_p.exp()
    ratio = log_p - log_q if alpha == 1.0 else (alpha - 1.0) * _log_mixture(log_p, log_q, alpha)
    return torch.where(p > 0, p * ratio, 0.0)


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
