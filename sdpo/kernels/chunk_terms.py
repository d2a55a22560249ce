"""Logits of a few tokens -> what there is to know about each, and, in place of the student's, the gradient.

No autograd graph is built. With Z the sum of exp(logits), p = exp(logits) / Z. The constants of a token (Z, its log,
the factors of a formula) stay out of the passes over the vocabulary: they are applied to one number per token.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from sdpo.kernels import support
from sdpo.kernels.divergence import Divergence, restricted
from sdpo.kernels.head import row_blocks, through_soft_cap

STATISTICS = 7  # numbers per token that `chunk_terms_` gives
INFINITE = 1e6  # nats; a divergence above met an impossible entry


def chunk_terms_(
    student: torch.Tensor,
    teacher: torch.Tensor | LogProbs,
    ids: torch.Tensor,
    spec: Divergence,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Statistics [7, n] of n tokens: divergence, log-prob of the sampled token, entropy of student and of teacher, mass
    of student and of teacher inside the support (1 unless mode is topk), and the factor of the gradient: `student`
    times it is the derivative of the divergence by the student's logits (before their soft cap, if there is one).

    student, teacher: finite logits [n, V]; `student` becomes the gradient, `teacher` is used up. Of a teacher whose
    answer is data, its log-probs (not for the mode full). ids: [n] int64. One floating dtype, but for the ids.
    """
    blocks = row_blocks(student)
    values = student.new_empty(STATISTICS, student.shape[0])
    scratch = student.new_empty(3, blocks[0].stop if blocks else 0, student.shape[1])
    for rows in blocks:
        room = scratch[:, : rows.stop - rows.start]
        with through_soft_cap(student[rows], soft_cap) as logits:
            other = teacher.rows(rows) if isinstance(teacher, LogProbs) else teacher[rows]
            values[:, rows] = _block_terms_(logits, other, ids[rows, None], spec, room)
    values[0].masked_fill_(values[0] > INFINITE, torch.inf)
    return values


def _block_terms_(
    student: torch.Tensor, teacher: torch.Tensor | LogProbs, ids: torch.Tensor, spec: Divergence, scratch: torch.Tensor
) -> torch.Tensor:
    """`chunk_terms_` of one block; ids [n, 1], scratch [3, n, V]."""
    p, q, spare = scratch
    own = _Side(student, p, exponentials_(student, spec.temperature, p))
    other: _Side | LogProbs = teacher
    if not isinstance(teacher, LogProbs):
        other = _Side(teacher, q, exponentials_(teacher, spec.temperature, q))
    log_prob = own.softmax.log_probs(ids)
    entropies = own.entropy(spare), other.entropy(spare)
    mass = teacher_mass = torch.ones_like(log_prob)
    factor = torch.full_like(log_prob, 1.0 / spec.temperature)
    if spec.mode == "full":
        assert isinstance(other, _Side)  # log-probs of some ids are of no use here
        value, factor = _WHOLE.get(spec.alpha, _jensen_shannon_)(own, other, spare, spec.alpha)
        factor /= spec.temperature
    else:
        few = few_categories(own, other, ids, spec, spare)
        value, (mass, teacher_mass) = few.value[:, None], few.masses[..., None]
        torch.mul(own.exps, few.elsewhere[:, None] / own.z, out=own.logits)
        own.logits.scatter_(-1, few.ids, 0.0).scatter_add_(-1, few.ids, few.at_ids)
    return torch.cat([value, log_prob, *entropies, mass, teacher_mass, factor], -1).T


class Softmax(NamedTuple):
    """exp(warmth * (logits [n, V] - top)) / z. z, top: [n, 1]; warmth: one over the temperature."""

    logits: torch.Tensor
    z: torch.Tensor
    top: torch.Tensor | float = 0.0
    warmth: float = 1.0

    def log_probs(self, ids: torch.Tensor) -> torch.Tensor:
        """Of ids [n, K]. The largest logit goes first, so that likely tokens keep their digits."""
        return (self.logits.gather(-1, ids) - self.top) * self.warmth - self.z.log()


class LogProbs(NamedTuple):
    """What a teacher that hands out no logits says of n tokens, at the rollout temperature."""

    ids: torch.Tensor  # [n, K] int64: the support, or the sampled tokens
    at_ids: torch.Tensor  # [n, K]
    others: torch.Tensor  # [n, 1], log of the mass of all other entries
    entropies: torch.Tensor  # [n, 1], nats
    sampled: torch.Tensor  # [n, 1], of the sampled tokens

    def rows(self, part: slice) -> LogProbs:
        return LogProbs(*(column[part] for column in self))

    def entropy(self, spare: torch.Tensor) -> torch.Tensor:
        return self.entropies


class FewCategories(NamedTuple):
    """Top-k and sampled-token modes, after which only the tokens `ids` are left to look at."""

    value: torch.Tensor  # [n], divergence
    ids: torch.Tensor  # [n, K]
    at_ids: torch.Tensor  # [n, K], derivative of the divergence by the student's tempered logits at the ids
    elsewhere: torch.Tensor  # [n], times its probability that of any other logit
    masses: torch.Tensor  # [2, n], what student and teacher give to the support


def few_categories(
    own: _Side, other: _Side | LogProbs, ids: torch.Tensor, spec: Divergence, spare: torch.Tensor
) -> FewCategories:
    """ids [n, 1]: the sampled tokens."""
    if isinstance(other, LogProbs):
        ids, inside, outside = other.ids, other.at_ids, other.others
        counted = support.counted(ids, min(spec.topk, own.logits.shape[-1])) if spec.mode == "topk" else None
    else:
        ids, counted = chosen(own.logits, other.logits, ids, spec)
        inside, outside = other.softmax.log_probs(ids), other.outside(ids, spare)
    return compared(ids, counted, (own.softmax.log_probs(ids), inside), (own.outside(ids, spare), outside), spec)


def log_probs_(
    logits: torch.Tensor, sampled: torch.Tensor, spec: Divergence, student_ids: torch.Tensor | None = None
) -> LogProbs:
    """What `chunk_terms_` needs of a teacher with these logits [n, V], which are used up. sampled: [n] int64.
    student_ids [n, k] int64: the student's share of the support, where it has one."""
    found = []
    for rows in row_blocks(logits):
        own = logits[rows]
        exps, spare = own.new_empty(2, *own.shape)
        side, chosen_ids = _Side(own, exps, exponentials_(own, spec.temperature, exps)), sampled[rows, None]
        if spec.mode == "topk":
            asked = [] if student_ids is None else [student_ids[rows]]
            mine = [] if spec.support == "student" else [support.top_ids(own, min(spec.topk, own.shape[-1]))]
            chosen_ids = torch.cat([*asked, *mine], -1)
        sampled_log_probs = side.softmax.log_probs(sampled[rows, None])
        said = side.softmax.log_probs(chosen_ids), side.outside(chosen_ids, spare), side.entropy(spare)
        found.append(LogProbs(chosen_ids, *said, sampled_log_probs))
    return LogProbs(*map(torch.cat, zip(*found, strict=True)))


def chosen(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The ids [n, K] of top-k or sampled-token mode and which of them count; from logits and the sampled ids [n, 1]."""
    return support.choose_support(student, teacher, spec.topk, spec.support) if spec.mode == "topk" else (ids, None)


def compared(
    ids: torch.Tensor,
    counted: torch.Tensor | None,
    inside: tuple[torch.Tensor, torch.Tensor],
    outside: tuple[torch.Tensor, torch.Tensor],
    spec: Divergence,
) -> FewCategories:
    """inside: log-probs of student and teacher at the ids, of which those `counted` count, all [n, K]; outside: the
    logs of the masses of all other entries, [n, 1]."""
    if counted is None:  # sampled-token mode
        ratio = inside[0] - inside[1]  # counts as a constant: score-function form of the reverse KL
        masses = ratio.new_ones(2, len(ids))
        return FewCategories((ratio * inside[0])[:, 0], ids, ratio * outside[0].exp(), -ratio[:, 0], masses)
    inside = tuple(side.masked_fill(~counted, -torch.inf) for side in inside)
    value, at_ids, elsewhere = restricted(inside, outside, spec)
    return FewCategories(value, ids, at_ids, elsewhere, torch.stack([side.exp().sum(-1) for side in inside]))


class _Side(NamedTuple):
    """Student or teacher: logits [n, V], exp(logits) [n, V], and the sums Z of those [n, 1]."""

    logits: torch.Tensor
    exps: torch.Tensor
    z: torch.Tensor

    @property
    def softmax(self) -> Softmax:
        return Softmax(self.logits, self.z)

    def outside(self, ids: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
        """Log of the mass [n, 1] of all but the ids [n, K]."""
        return spare.copy_(self.exps).scatter_(-1, ids, 0.0).sum(-1, keepdim=True).log_() - self.z.log()

    def entropy(self, spare: torch.Tensor) -> torch.Tensor:
        return self.z.log() - dot(self.exps, self.logits, spare) / self.z


def softmax_(logits: torch.Tensor, temperature: float) -> tuple[Softmax, torch.Tensor]:
    """softmax(logits [n, V] / temperature) and its entropy [n, 1] in nats; the logits are shifted and divided."""
    z, entropy = logits.new_empty(2, logits.shape[0], 1)
    blocks = row_blocks(logits)
    scratch = torch.empty_like(logits[: blocks[0].stop if blocks else 0])
    for rows in blocks:
        block, exps = logits[rows], scratch[: rows.stop - rows.start]
        z[rows] = exponentials_(block, temperature, exps)
        entropy[rows] = z[rows].log() - dot(exps, block, exps) / z[rows]
    return Softmax(logits, z), entropy


def through_softmax_(own: Softmax, ids: torch.Tensor, slope: torch.Tensor) -> None:
    """Replaces the logits that `softmax_` has left by the derivative by them, times the temperature; slope [n, K]: the
    derivative by the log-probs at `ids` [n, K]."""
    own.logits.exp_().mul_(-slope.sum(-1, keepdim=True) / own.z).scatter_add_(-1, ids, slope)


def exponentials_(logits: torch.Tensor, temperature: float, out: torch.Tensor) -> torch.Tensor:
    """Sets `out` [n, V] to exp(logits) and returns its sums Z [n, 1]. The logits [n, V] are shifted by their maximum
    and divided by the temperature in place, in this order, so that log-probs, logits - log Z, keep their digits."""
    logits.sub_(logits.amax(-1, keepdim=True))
    if temperature != 1.0:
        logits.div_(temperature)
    return torch.exp(logits, out=out).sum(-1, keepdim=True)


def dot(a: torch.Tensor, b: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """Sums [n, 1] of a * b, in pairs: a plain dot product of a whole vocabulary loses digits."""
    return torch.mul(a, b, out=spare).sum(-1, keepdim=True)


# The three kinds of divergence over the whole vocabulary. Each turns the student's logits into a multiple of the
# gradient by them and returns the divergence and the missing factor, both [n, 1]; everything else is used up.


def _forward_kl_(own: _Side, other: _Side, spare: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    scale = own.z / other.z
    value = dot(other.exps, other.logits.sub_(own.logits), spare) / other.z + scale.log()
    torch.addcmul(own.exps, other.exps, -scale, out=own.logits)
    return value, 1.0 / own.z


def _reverse_kl_(own: _Side, other: _Side, spare: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    expected = _centred_(own, other.logits.sub_(own.logits), spare)
    return (other.z / own.z).log() - expected, -1.0 / own.z


def _jensen_shannon_(own: _Side, other: _Side, spare: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    scale, log_share = own.z / other.z, math.log1p(-alpha)
    mixture = torch.addcmul(own.exps, other.exps, scale * (alpha / (1.0 - alpha)), out=spare)  # M z / (1 - alpha)
    log_m = mixture.clamp_(min=torch.finfo(mixture.dtype).tiny).log_()  # finite where both sides have no mass
    products = other.logits.sub_(log_m).mul_(other.exps)
    from_teacher = products.sum(-1, keepdim=True) / other.z + scale.log() - log_share
    expected = _centred_(own, log_m.sub_(own.logits), other.exps)
    return alpha * from_teacher - (1.0 - alpha) * (expected + log_share), (alpha - 1.0) / own.z


_WHOLE = {0.0: _forward_kl_, 1.0: _reverse_kl_}


def _centred_(own: _Side, values: torch.Tensor, spare: torch.Tensor) -> torch.Tensor:
    """Replaces the logits by exps * (values - expected); returns expected [n, 1], the mean of `values` [n, V]."""
    products = torch.mul(own.exps, values, out=spare)
    expected = products.sum(-1, keepdim=True) / own.z
    torch.addcmul(products, own.exps, -expected, out=own.logits)
    return expected
