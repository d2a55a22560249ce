"""`chunk_terms.chunk_terms_` as Triton kernels: one program per token, online softmax, no scratch in device memory.

A program reads its two rows of logits once for both softmaxes and entropies, once more for the divergence (not for the
forward KL, whose gradient does not wait for it) and a last time when it writes the gradient over the student's row. The
later reads find the rows in the L2 cache if they fit. Top-k and sampled-token modes take their few entries out of the
rows, so that the first kernel adds up the others alone, compare them in torch, and write the gradient with the second
kernel. Largest logit and log Z stay apart: as one number they would take each other's digits. float32 only; needs
`triton`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from sdpo.kernels.chunk_terms import INFINITE, STATISTICS, FewCategories, chosen, compared
from sdpo.kernels.divergence import Divergence

BLOCK = 4096  # entries of a row that a program holds at once
WARPS = 8
TAKEN = -1e30  # a logit without probability
KINDS = {0.0: "forward", 1.0: "reverse"}
ALPHAS = {"forward": 1.0, "reverse": 0.0}  # shares of the two sides that give the plain KL; else alpha itself


def chunk_terms_(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence, soft_cap: float | None = None
) -> torch.Tensor:
    """As `chunk_terms.chunk_terms_`, for float32 logits with contiguous rows."""
    values = student.new_ones(STATISTICS, student.shape[0])
    if not student.shape[0]:
        return values
    warmth, ids = 1.0 / spec.temperature, ids[:, None]
    sampled, sums = student.gather(-1, ids), student.new_empty(6, student.shape[0])
    few = None if spec.mode == "full" else _take_out_(student, teacher, ids, spec)
    kind = KINDS.get(spec.alpha, "mixture") if few is None else "statistics"
    _launch(
        _row_terms, student, soft_cap, teacher, teacher.stride(0), values, sums, sums.stride(0), warmth,
        ALPHAS.get(kind, spec.alpha), KIND=kind,
    )  # fmt: skip
    sides = [side[..., None] for side in (sums[:3], sums[3:])]
    if few is not None:
        found, sides = _put_back(few, sides, spec)
        values[0], values[4:6] = found.value, found.masses
        _write_gradient_(student, few.logits[0], sides[0], found, soft_cap, warmth)
    (top, z, weighted), (_, other_z, other_weighted) = sides
    values[1] = ((sampled - top) * warmth - z.log())[:, 0]
    values[2], values[3] = (z.log() - weighted / z)[:, 0], (other_z.log() - other_weighted / other_z)[:, 0]
    values[0].masked_fill_(values[0] > INFINITE, torch.inf)
    return values


class _Few(NamedTuple):
    """Entries taken out of the rows: ids [n, K], which of them count, and the logits of both sides there [n, K]."""

    ids: torch.Tensor
    counted: torch.Tensor | None
    logits: list[torch.Tensor]


def _take_out_(student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence) -> _Few:
    ids, counted = chosen(student, teacher, ids, spec)
    few = _Few(ids, counted, [side.gather(-1, ids) for side in (student, teacher)])
    for side in (student, teacher):
        side.scatter_(-1, ids, TAKEN)
    return few


def _put_back(few: _Few, sides: list[torch.Tensor], spec: Divergence) -> tuple[FewCategories, list[torch.Tensor]]:
    """The comparison, and the sums with the few entries among them. sides: of student and teacher each largest logit,
    Z relative to it and the sum of exp(x) x [3, n, 1]."""
    warmth, inside, outside, whole = 1.0 / spec.temperature, [], [], []
    for logits, (top, z, weighted) in zip(few.logits, sides, strict=True):
        largest = torch.maximum(top, logits.amax(-1, keepdim=True))
        moved = ((top - largest) * warmth).clamp(min=-1e4)  # finite where nothing is left; exp is 0 far above that
        shifted = (logits - largest) * warmth
        weights = shifted.exp() if few.counted is None else shifted.exp() * few.counted
        rest = z * moved.exp()
        total = rest + weights.sum(-1, keepdim=True)
        all_weighted = moved.exp() * (weighted + moved * z) + (weights * shifted).sum(-1, keepdim=True)
        inside.append(shifted - total.log())
        outside.append((rest / total).log())
        whole.append(torch.stack([largest, total, all_weighted]))
    return compared(few.ids, few.counted, tuple(inside), tuple(outside), spec), whole


def _write_gradient_(
    student: torch.Tensor,
    logits: torch.Tensor,
    sums: torch.Tensor,
    found: FewCategories,
    soft_cap: float | None,
    warmth: float,
) -> None:
    """logits: those that were taken out of `student`; sums: the student's, of whole rows."""
    top, z, _ = sums
    at_ids = found.at_ids * warmth
    if soft_cap is not None:
        at_ids = at_ids * (1.0 - (logits / soft_cap).square_())
    _launch(_scaled_softmax, student, soft_cap, top, found.elsewhere / z[:, 0], warmth)
    student.scatter_(-1, found.ids, 0.0).scatter_add_(-1, found.ids, at_ids)


def _launch(kernel: triton.JITFunction, student: torch.Tensor, soft_cap: float | None, *arguments: object, **constants):
    tokens, width = student.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    cap = 0.0 if soft_cap is None else 1.0 / soft_cap
    kernel[(tokens,)](student, student.stride(0), width, cap, *arguments, BLOCK=block, num_warps=WARPS, **constants)


@triton.jit
def _softmax_sums(x, shift, z, total, inverse_temperature):
    """Adds a block of logits to the running maximum, sum of exp(x) and sum of exp(x) x, x = (logit - maximum) / T."""
    top = tl.maximum(shift, tl.max(x, 0))
    x = (x - top) * inverse_temperature
    weight = tl.exp(x)
    moved = (shift - top) * inverse_temperature
    scale = tl.exp(moved)
    total = scale * (total + moved * z) + tl.sum(weight * x, 0)
    return top, scale * z + tl.sum(weight, 0), total


@triton.jit
def _load(row, start, width, BLOCK: tl.constexpr):
    """Entries from `start` on; beyond the row impossible ones."""
    at = start + tl.arange(0, BLOCK)
    return tl.load(row + at, mask=at < width, other=-1e30)


@triton.jit
def _store_gradient(row, start, width, gradient, inverse_cap, BLOCK: tl.constexpr):
    """Over the logits it is the gradient by; with inverse_cap > 0 by what the soft cap was applied to."""
    at = start + tl.arange(0, BLOCK)
    if inverse_cap > 0.0:
        capped = tl.load(row + at, mask=at < width, other=0.0) * inverse_cap
        gradient *= 1.0 - capped * capped
    tl.store(row + at, gradient, mask=at < width)


@triton.jit
def _row_terms(
    student, student_stride, width, inverse_cap, teacher, teacher_stride, values, sums, tokens, inverse_temperature,
    alpha, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums of one token; unless KIND is "statistics" also the divergence and, in place, its gradient."""
    token = tl.program_id(0).to(tl.int64)
    student += token * student_stride
    teacher += token * teacher_stride
    m_p, z_p, d_p = -1e30, 0.0, 0.0
    m_q, z_q, d_q = -1e30, 0.0, 0.0
    for start in range(0, width, BLOCK):
        m_p, z_p, d_p = _softmax_sums(_load(student, start, width, BLOCK), m_p, z_p, d_p, inverse_temperature)
        m_q, z_q, d_q = _softmax_sums(_load(teacher, start, width, BLOCK), m_q, z_q, d_q, inverse_temperature)
    tl.store(sums + token, m_p)
    tl.store(sums + tokens + token, z_p)
    tl.store(sums + 2 * tokens + token, d_p)
    tl.store(sums + 3 * tokens + token, m_q)
    tl.store(sums + 4 * tokens + token, z_q)
    tl.store(sums + 5 * tokens + token, d_q)
    log_z_p, log_z_q = tl.log(z_p), tl.log(z_q)
    from_student, from_teacher = 0.0, 0.0
    if KIND == "reverse" or KIND == "mixture":
        for start in range(0, width, BLOCK):
            log_p = (_load(student, start, width, BLOCK) - m_p) * inverse_temperature - log_z_p
            log_q = (_load(teacher, start, width, BLOCK) - m_q) * inverse_temperature - log_z_q
            base = _compared_with(log_p, log_q, alpha, KIND)
            from_student += tl.sum(tl.exp(log_p) * (base - log_p), 0)
            from_teacher += tl.sum(tl.exp(log_q) * (log_q - base), 0)
    if KIND != "statistics":
        for start in range(0, width, BLOCK):
            log_p = (_load(student, start, width, BLOCK) - m_p) * inverse_temperature - log_z_p
            log_q = (_load(teacher, start, width, BLOCK) - m_q) * inverse_temperature - log_z_q
            if KIND == "forward":
                from_teacher += tl.sum(tl.exp(log_q) * (log_q - log_p), 0)
                gradient = tl.exp(log_p) - tl.exp(log_q)
            else:
                base = _compared_with(log_p, log_q, alpha, KIND)
                gradient = (1.0 - alpha) * tl.exp(log_p) * (from_student - (base - log_p))
            _store_gradient(student, start, width, gradient * inverse_temperature, inverse_cap, BLOCK)
        tl.store(values + token, alpha * from_teacher - (1.0 - alpha) * from_student)


@triton.jit
def _compared_with(log_p, log_q, alpha, KIND: tl.constexpr):
    """What the student is compared with: the teacher, or the mixture."""
    if KIND == "reverse":
        return log_q
    else:  # finite where neither side has mass
        return tl.log(tl.maximum((1.0 - alpha) * tl.exp(log_p) + alpha * tl.exp(log_q), 1.2e-38))


@triton.jit
def _scaled_softmax(
    student, student_stride, width, inverse_cap, top, factor, inverse_temperature, BLOCK: tl.constexpr
):  # fmt: skip
    """Sets the logits of one token to exp((logit - top) / T) * factor / T (times the derivative of the soft cap)."""
    token = tl.program_id(0).to(tl.int64)
    student += token * student_stride
    shift, scale = tl.load(top + token), tl.load(factor + token) * inverse_temperature
    for start in range(0, width, BLOCK):
        gradient = tl.exp((_load(student, start, width, BLOCK) - shift) * inverse_temperature) * scale
        _store_gradient(student, start, width, gradient, inverse_cap, BLOCK)
