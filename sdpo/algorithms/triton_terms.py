"""`chunk_terms.chunk_terms_` as Triton kernels: one program per token, online softmax, no scratch in device memory.

A program reads its two rows of logits once for both softmaxes and entropies, once more for the divergence (not for the
forward KL, whose gradient does not wait for it) and a last time when it writes the gradient over the student's row. The
later reads find the rows in the L2 cache if they fit. Top-k and sampled-token modes take the statistics from the first
kernel, do their few categories in torch, and write the gradient with the second. float32 only; needs `triton`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sdpo.algorithms.chunk_terms import INFINITE, STATISTICS, Softmax, few_categories
from sdpo.algorithms.divergence import Divergence

BLOCK = 4096  # entries of a row that a program holds at once
WARPS = 8
KINDS = {0.0: "forward", 1.0: "reverse"}
ALPHAS = {"forward": 1.0, "reverse": 0.0}  # shares of the two sides that give the plain KL; else alpha itself


def chunk_terms_(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence, soft_cap: float | None = None
) -> torch.Tensor:
    """As `chunk_terms.chunk_terms_`, for float32 logits with contiguous rows; `teacher` is left as it is."""
    values = student.new_ones(STATISTICS, student.shape[0])
    if not student.shape[0]:
        return values
    kind = KINDS.get(spec.alpha, "mixture") if spec.mode == "full" else "statistics"
    log_z = student.new_empty(2, student.shape[0])
    _launch(
        _row_terms, student, soft_cap, teacher, teacher.stride(0), ids, values, log_z, values.stride(0),
        1.0 / spec.temperature, ALPHAS.get(kind, spec.alpha), KIND=kind,
    )  # fmt: skip
    if spec.mode != "full":
        _few_categories_(student, teacher, ids[:, None], spec, soft_cap, values, log_z[..., None])
    values[0].masked_fill_(values[0] > INFINITE, torch.inf)
    return values


def _few_categories_(
    student: torch.Tensor,
    teacher: torch.Tensor,
    ids: torch.Tensor,
    spec: Divergence,
    soft_cap: float | None,
    values: torch.Tensor,
    log_z: torch.Tensor,
) -> None:
    """Completes `values` [7, n] for top-k and token mode and sets `student` to the gradient; log_z [2, n, 1]."""
    warmth = 1.0 / spec.temperature
    one = torch.ones_like(log_z[0])
    own, other = (
        Softmax(side, one, lse * spec.temperature, warmth) for side, lse in zip((student, teacher), log_z, strict=True)
    )
    few = few_categories(own, other, ids, spec)
    values[0], values[4:6] = few.value, few.masses
    slope = few.slope * warmth
    outer = -slope.sum(-1)
    if soft_cap is not None:
        slope = slope * (1.0 - (student.gather(-1, few.ids) / soft_cap).square_())
    _launch(_scaled_softmax, student, soft_cap, log_z, outer, warmth)
    student.scatter_add_(-1, few.ids, slope)


def _launch(kernel: triton.JITFunction, student: torch.Tensor, soft_cap: float | None, *arguments: object, **constants):
    tokens, width = student.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    cap = 0.0 if soft_cap is None else 1.0 / soft_cap
    kernel[(tokens,)](student, student.stride(0), width, cap, *arguments, BLOCK=block, num_warps=WARPS, **constants)


@triton.jit
def _log_softmax_sums(x, shift, z, total):
    """Adds a block of logits x to the running maximum, sum of exp(x - maximum) and sum of exp(x - maximum) * (x -
    maximum)."""
    top = tl.maximum(shift, tl.max(x, 0))
    weight = tl.exp(x - top)
    scale = tl.exp(shift - top)
    total = scale * (total + (shift - top) * z) + tl.sum(weight * (x - top), 0)
    return top, scale * z + tl.sum(weight, 0), total


@triton.jit
def _load(row, start, width, inverse_temperature, BLOCK: tl.constexpr):
    """Entries from `start` on, tempered; beyond the row impossible ones."""
    at = start + tl.arange(0, BLOCK)
    return tl.load(row + at, mask=at < width, other=-1e30) * inverse_temperature


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
    student, student_stride, width, inverse_cap, teacher, teacher_stride, ids, values, log_z, tokens,
    inverse_temperature, alpha, KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Statistics of one token; unless KIND is "statistics" also the divergence and, in place, its gradient."""
    token = tl.program_id(0).to(tl.int64)
    student += token * student_stride
    teacher += token * teacher_stride
    m_p, z_p, d_p = -1e30, 0.0, 0.0
    m_q, z_q, d_q = -1e30, 0.0, 0.0
    for start in range(0, width, BLOCK):
        m_p, z_p, d_p = _log_softmax_sums(_load(student, start, width, inverse_temperature, BLOCK), m_p, z_p, d_p)
        m_q, z_q, d_q = _log_softmax_sums(_load(teacher, start, width, inverse_temperature, BLOCK), m_q, z_q, d_q)
    lse_p, lse_q = m_p + tl.log(z_p), m_q + tl.log(z_q)
    tl.store(log_z + token, lse_p)
    tl.store(log_z + tokens + token, lse_q)
    log_prob = tl.load(student + tl.load(ids + token)) * inverse_temperature - lse_p
    tl.store(values + tokens + token, log_prob)
    tl.store(values + 2 * tokens + token, tl.log(z_p) - d_p / z_p)
    tl.store(values + 3 * tokens + token, tl.log(z_q) - d_q / z_q)
    from_student, from_teacher = 0.0, 0.0
    if KIND == "reverse" or KIND == "mixture":
        for start in range(0, width, BLOCK):
            log_p = _load(student, start, width, inverse_temperature, BLOCK) - lse_p
            log_q = _load(teacher, start, width, inverse_temperature, BLOCK) - lse_q
            base = _compared_with(log_p, log_q, alpha, KIND)
            from_student += tl.sum(tl.exp(log_p) * (base - log_p), 0)
            from_teacher += tl.sum(tl.exp(log_q) * (log_q - base), 0)
    if KIND != "statistics":
        for start in range(0, width, BLOCK):
            log_p = _load(student, start, width, inverse_temperature, BLOCK) - lse_p
            log_q = _load(teacher, start, width, inverse_temperature, BLOCK) - lse_q
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
    student, student_stride, width, inverse_cap, log_z, outer, inverse_temperature, BLOCK: tl.constexpr
):  # fmt: skip
    """Sets the logits of one token to softmax * outer (times the derivative of the soft cap)."""
    token = tl.program_id(0).to(tl.int64)
    student += token * student_stride
    lse, scale = tl.load(log_z + token), tl.load(outer + token)
    for start in range(0, width, BLOCK):
        gradient = tl.exp(_load(student, start, width, inverse_temperature, BLOCK) - lse) * scale
        _store_gradient(student, start, width, gradient, inverse_cap, BLOCK)
