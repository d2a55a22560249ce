"""The divergence between student and teacher at every response token, with its gradient in closed form.

    alpha = 0      KL(teacher || student)                                   forward KL
    alpha = 1      KL(student || teacher)                                   reverse KL
    0 < alpha < 1  alpha KL(teacher || M) + (1 - alpha) KL(student || M)    generalized Jensen-Shannon
                   with M = (1 - alpha) student + alpha teacher

The end points are not the limits of the interior, which goes to 0 at both ends. Here: the settings, and the divergence
of a few categories. Over the vocabulary: chunk_terms.py. Derivations: docs/algorithm.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sdpo.config.schema import SelfDistillationConfig
from sdpo.errors import ConfigError, problem
from sdpo.kernels import support

RATIO_LIMIT = 80.0  # of log q - log p, either way, beside a mixture: beyond, the mixture is one side alone


@dataclass(frozen=True)
class Divergence:
    """What is compared. mode: full | topk | token; the other fields as in `SelfDistillationConfig`."""

    mode: str = "full"
    alpha: float = 0.5
    topk: int = 0  # only of the mode topk
    add_tail: bool = True
    support: str = "student"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise ConfigError(problem("self_distillation.alpha", self.alpha, "a number in [0, 1]"))
        if self.mode == "token" and self.alpha != 1.0:
            fix = "set alpha=1 or full_logit_distillation=true"
            raise ConfigError(problem("self_distillation.alpha", self.alpha, "1 for sampled-token distillation", fix))
        if self.mode == "topk" and self.topk < 1:
            raise ConfigError(problem("self_distillation.distillation_topk", self.topk, "null or at least 1"))
        if self.support not in ("student", "teacher", "union"):
            raise ConfigError(problem("self_distillation.support", self.support, "student, teacher or union"))

    @classmethod
    def from_config(cls, config: SelfDistillationConfig, temperature: float) -> Divergence:
        """`temperature` divides the logits of both sides."""
        mode = "token" if not config.full_logit_distillation else "full" if config.distillation_topk is None else "topk"
        topk, add_tail = config.distillation_topk or 0, config.distillation_add_tail
        return cls(mode, config.alpha, topk, add_tail, config.support, temperature)

    def describe(self) -> str:
        """For example 'generalized Jensen-Shannon (alpha 0.5), student top-100 + tail'."""
        if self.mode == "token":
            return "reverse KL at the sampled token"
        names = {0.0: "forward KL, KL(teacher||student)", 1.0: "reverse KL, KL(student||teacher)"}
        name = names.get(self.alpha, f"generalized Jensen-Shannon (alpha {self.alpha:g})")
        if self.mode == "full":
            return f"{name}, whole vocabulary"
        return f"{name}, {self.support} top-{self.topk} {'+ tail' if self.add_tail else 'renormalised'}"


def restricted(
    inside: tuple[torch.Tensor, torch.Tensor], outside: tuple[torch.Tensor, torch.Tensor], spec: Divergence
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value [n] of the top-k form; its derivatives [n, K] by the student's logits inside the support; and by those
    outside, as a multiple [n] of their probability.

    inside [n, K], outside [n, 1]: log-probs in the support and log of the mass outside it, of student and teacher.
    """
    if not spec.add_tail:
        p, q = (support.renormalised(side) for side in inside)
        slope = divergence_slope(p, q, spec.alpha)
        gradient = slope - p.exp() * slope.sum(-1, keepdim=True)
        return distribution_divergence(p, q, spec.alpha), gradient, slope.new_zeros(slope.shape[0])
    p, q = (support.with_tail(*side) for side in zip(inside, outside, strict=True))
    slope = divergence_slope(p, q, spec.alpha)
    common, elsewhere = _through_softmax(slope, p[:, -1:].exp(), outside[0], spec.alpha)
    gradient = slope[:, :-1] - inside[0].exp() * common
    return distribution_divergence(p, q, spec.alpha), gradient, elsewhere[:, 0]


def expectation(probs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum of probs * values over the last axis; an impossible category adds 0 whatever its (infinite) value."""
    return torch.where(probs == 0, 0.0, probs * values).sum(-1)  # NaN stays NaN


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


def _through_softmax(
    slope: torch.Tensor, tail: torch.Tensor, outside: torch.Tensor, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """From derivatives by the log-probs of all categories [n, K + 1], the tail last, to those by logits: what to take
    from an inside one, and what an outside one is, both [n, 1] and times its probability.

    A category's is slope - p * (sum of slopes), and the tail's is spread over the entries outside. Written as sums over
    inside and outside entries instead, terms as large as the inverse of the tail would have to cancel. Where the tail
    is at its floor it is a constant, and the categories no longer sum to one: the term that `divergence_slope` leaves
    out comes back.
    """
    common = slope.sum(-1, keepdim=True)
    by_inside, left_out = slope[:, :-1].sum(-1, keepdim=True), 1.0 if alpha == 1.0 else 0.0
    at_floor, mass = outside <= support.MIN_TAIL, left_out * outside.exp()
    elsewhere = torch.where(at_floor, mass - left_out - by_inside, slope[:, -1:] / tail - common)
    return torch.where(at_floor, by_inside - mass, common), elsewhere
