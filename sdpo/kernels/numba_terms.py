"""`chunk_terms.chunk_terms_` for CPUs, compiled by Numba: one row after another, without scratch memory.

A torch operation on a chunk is one pass through memory and one meeting of all threads, and the formulas need thirty of
them. Here each thread takes a share of the rows and goes three times through each, in tiles whose loops become vector
instructions; exp and log are polynomials, so that they do too (numba_math.py). float32 only; needs `numba`. Formulas
and names are those of chunk_terms.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numba import njit

from sdpo.kernels import chunk_terms, support
from sdpo.kernels.chunk_terms import Softmax, compared
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.head import parts, row_blocks, through_soft_cap
from sdpo.kernels.numba_math import INT, TINY, F, exp, log, number, ordered

MIN_FACTOR = 1e-20  # of a gradient that can be taken out of its row
TILE = 1024  # entries that are added up in float32; the tiles are in float64
SHORT_TILE = 128  # entries whose maximum says whether to look into them
ROWS = {"nogil": True, "error_model": "numpy"}
LOOP = {"nogil": True, "fastmath": True, "error_model": "numpy"}  # sums in any order; numbers taken to be finite

ZERO = F(0.0)
LOWEST_KEY = INT(-(2**31))  # below that of -inf
TAKEN = F(-1e30)  # a logit without probability


def chunk_terms_(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence, soft_cap: float | None = None
) -> torch.Tensor:
    """As `chunk_terms.chunk_terms_`, for float32 logits on a CPU."""
    values = student.new_ones(chunk_terms.STATISTICS, student.shape[0])
    whole = [slice(0, student.shape[0])] if student.shape[0] else []
    for rows in whole if soft_cap is None else row_blocks(student):
        with through_soft_cap(student[rows], soft_cap) as logits:
            _terms_(logits, teacher[rows], ids[rows, None], spec, values[:, rows])
    values[0].masked_fill_(values[0] > chunk_terms.INFINITE, torch.inf)
    return values


def softmax_(logits: torch.Tensor, temperature: float) -> tuple[Softmax, torch.Tensor]:
    """As `chunk_terms.softmax_`, but the logits stay as they are."""
    sums = logits.new_empty(3, logits.shape[0])
    _over_rows(_softmax_sums, [logits], [sums], F(1.0 / temperature))
    top, z, entropy = sums[:, :, None]
    return Softmax(logits, z, top, 1.0 / temperature), entropy


def through_softmax_(own: Softmax, ids: torch.Tensor, slope: torch.Tensor) -> None:
    """As `chunk_terms.through_softmax_`."""
    factor = -slope.sum(-1, keepdim=True) / own.z
    assert isinstance(own.top, torch.Tensor)  # from `softmax_` of this module
    _over_rows(_scaled_exponentials, [own.logits], [own.top[:, 0], factor[:, 0]], F(own.warmth))
    own.logits.scatter_add_(-1, ids, slope)


def _terms_(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence, values: torch.Tensor
) -> None:
    """Fills `values` [7, n] and replaces the student's logits, for logits without a soft cap; ids [n, 1]."""
    values[6] = 1.0 / spec.temperature
    if spec.mode != "full":
        _few_terms_(student, teacher, ids, spec, values)
        return
    (own, entropy), (other, teacher_entropy) = (softmax_(side, spec.temperature) for side in (student, teacher))
    values[1:4] = torch.cat([own.log_probs(ids), entropy, teacher_entropy], -1).T
    columns = [torch.cat([own.top, own.z, other.top, other.z], -1).T, values[0]]
    if spec.alpha == 0.0:
        _over_rows(_forward_kl, [student, teacher], columns, F(own.warmth))
        values[6] /= own.z[:, 0]
    else:
        _over_rows(_mixture_divergence, [student, teacher], columns, F(own.warmth), spec.alpha)
        values[6] *= (spec.alpha - 1.0 if spec.alpha < 1.0 else -1.0) / own.z[:, 0]


def _few_terms_(
    student: torch.Tensor, teacher: torch.Tensor, ids: torch.Tensor, spec: Divergence, values: torch.Tensor
) -> None:
    """`_terms_` of the top-k and sampled-token modes. The gradient is exp(logits) times one factor a token, which goes
    to `values`, and what the few ids add: the chunk is read once and written once."""
    tokens, k = len(ids), 0 if spec.mode == "token" else min(spec.topk, student.shape[1])
    own, other = (k if spec.support in (side, "union") else 0 for side in ("student", "teacher"))
    ids = torch.cat([ids, ids.new_empty(tokens, own + other)], -1)
    log_probs, sums = student.new_empty(tokens, 2, ids.shape[1]), student.new_empty(2, 3, tokens)
    _over_rows(_softmax_at_ids, [student, teacher, ids, log_probs], [sums], F(1.0 / spec.temperature), own)
    log_probs -= sums[:, 0].log().T[..., None]
    values[1], values[2:4] = log_probs[:, 0, 0], sums[:, 1]
    counted = None
    if k:
        ids, log_probs = ids[:, 1:], log_probs[..., 1:]
        counted = support.counted(ids, k)
    few = compared(ids, counted, log_probs.unbind(1), sums[:, 2, :, None].log().unbind(0), spec)
    values[0], values[4:6] = few.value, few.masses
    factor = few.elsewhere / sums[0, 0]
    alone = factor.abs() < MIN_FACTOR
    if alone.any():
        student[alone], factor[alone] = 0.0, 1.0
    values[6] *= factor
    student.scatter_add_(-1, ids, few.at_ids / factor[:, None])  # to the zeros that the kernel has left there


def _over_rows(
    kernel: Callable[..., None], matrices: Sequence[torch.Tensor], columns: Sequence[torch.Tensor], *constants: float
) -> None:
    """Runs a kernel on equal shares of the rows of `matrices` [n, V] and of `columns` [..., n], a share for each of
    torch's threads."""
    tokens, threads = matrices[0].shape[0], torch.get_num_threads()
    shares = [
        [*(m.detach()[rows].numpy() for m in matrices), *(c[..., rows].numpy() for c in columns), *constants]
        for rows in parts(tokens, math.ceil(tokens / threads))
    ]
    for _ in _threads(threads).map(lambda share: kernel(*share), shares):
        pass  # raises what a thread has raised


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "numba_terms")


# Kernels: rows of logits in, shifted and tempered on the way, (x - top) * warmth, and sums over tiles in float64.


@njit(**ROWS)
def _softmax_sums(logits, sums, warmth):
    """sums [3, n]: the largest logit, Z relative to it, and the entropy."""
    for row in range(logits.shape[0]):
        top = number(_largest_key(logits[row]))
        sums[0, row] = top
        z, weighted = _row_sums(logits[row], warmth, top, _exp_sums)
        sums[1, row], sums[2, row] = z, math.log(z) - weighted / z


@njit(**ROWS)
def _softmax_at_ids(student, teacher, ids, shifted, sums, warmth, own):
    """shifted [n, 2, K]: x - top at the ids [n, K], of which the first is given, `own` are the student's largest and
    the rest the teacher's. sums [2, 3, n]: Z, entropy and the share of Z outside the support, of both. The student's
    logits x become exp(x - top), and 0 in the support: its ids, or the given one where there are no others."""
    first = min(1, ids.shape[1] - 1)
    for row in range(student.shape[0]):
        p, q, few, found = student[row], teacher[row], ids[row], shifted[row]
        top_p, top_q = _largest_ids(p, few[1 : 1 + own]), _largest_ids(q, few[1 + own :])
        for i in range(few.shape[0]):
            found[0, i], found[1, i] = (p[few[i]] - top_p) * warmth, (q[few[i]] - top_q) * warmth
        few, p_few, q_few = few[first:], found[0, first:], found[1, first:]
        sums[0, :, row] = _sums_around(p, few, p_few, warmth, top_p, _exp_sums_)
        sums[1, :, row] = _sums_around(q, few, q_few, warmth, top_q, _exp_sums)


@njit(**ROWS)
def _sums_around(x, few, found, warmth, top, tile_sums):
    """Z, entropy and the share of Z outside `few`, ids whose x - top are `found`. They are taken out of the row first:
    beside the largest, sums in float32 have no digits left for a small rest."""
    inside, inside_weighted = 0.0, 0.0
    for i in range(few.shape[0]):
        if x[few[i]] != TAKEN:  # not the second time that an id comes
            x[few[i]] = TAKEN
            weight = math.exp(found[i])
            inside += weight
            inside_weighted += weight * found[i]
    outside, weighted = _row_sums(x, warmth, top, tile_sums)
    z = inside + outside
    return z, math.log(z) - (inside_weighted + weighted) / z, outside / z


@njit(**ROWS)
def _row_sums(x, warmth, top, tile_sums):
    """Z and the sum of exp(x - top) (x - top). What `tile_sums` does counts on finite numbers."""
    z, weighted = 0.0 if math.isfinite(top) else math.nan, 0.0
    for start in range(0, x.shape[0], TILE):
        tile_z, tile_weighted = tile_sums(x[start : start + TILE], warmth, top)
        z += tile_z
        weighted += tile_weighted
    return z, weighted


@njit(**ROWS)
def _scaled_exponentials(logits, top, factor, warmth):
    for row in range(logits.shape[0]):
        _scale_tile(logits[row], warmth, top[row], factor[row])


@njit(**ROWS)
def _forward_kl(student, teacher, sums, value, warmth):
    for row in range(student.shape[0]):
        p, q = student[row], teacher[row]
        top_p, z_p, top_q, z_q = sums[:, row]
        scale, total = z_p / z_q, 0.0
        for start in range(0, p.shape[0], TILE):
            stop = start + TILE
            total += _forward_tile(p[start:stop], q[start:stop], warmth, top_p, top_q, scale)
        value[row] = total / z_q + math.log(scale)


@njit(**ROWS)
def _mixture_divergence(student, teacher, sums, value, warmth, alpha):
    """alpha 1: the reverse KL, where the mixture is the teacher."""
    for row in range(student.shape[0]):
        p, q = student[row], teacher[row]
        top_p, z_p, top_q, z_q = sums[:, row]
        scale, from_student, from_teacher = float(z_p) / z_q, 0.0, 0.0
        share = F(scale * alpha / (1.0 - alpha)) if alpha < 1.0 else ZERO
        for start in range(0, p.shape[0], TILE):
            stop = start + TILE
            if alpha < 1.0:
                own, other = _mixture_tile(p[start:stop], q[start:stop], warmth, top_p, top_q, share)
                from_teacher += other
            else:
                own = _reverse_tile(p[start:stop], q[start:stop], warmth, top_p, top_q)
            from_student += own
        expected = from_student / z_p
        _subtract_tile(p, q, F(expected))
        if alpha < 1.0:
            log_share = math.log1p(-alpha)
            other = from_teacher / z_q + math.log(scale) - log_share
            value[row] = alpha * other - (1.0 - alpha) * (expected + log_share)
        else:
            value[row] = -math.log(scale) - expected


@njit(**ROWS)
def _largest_ids(x, ids):
    """Sets ids [k] to those of the k largest, in no order, and returns the largest. Of the maxima of all tiles the k-th
    largest is a bound that k entries or more reach, so that few tiles are looked into."""
    k, tiles, top = ids.shape[0], -(-x.shape[0] // SHORT_TILE), LOWEST_KEY
    keys, maxima = np.empty(k, INT), np.empty(tiles, INT)
    for tile in range(tiles):
        maxima[tile] = _largest_key(x[tile * SHORT_TILE : (tile + 1) * SHORT_TILE])
        top = max(top, maxima[tile])
    if not k:
        return number(top)
    bound = LOWEST_KEY
    if tiles > k:
        keys[:] = LOWEST_KEY
        _keep_largest(maxima, 0, bound, keys, ids)  # what is chosen here is overwritten below
        bound = keys[0]
    keys[:] = LOWEST_KEY
    for tile in range(tiles):
        if maxima[tile] >= bound and maxima[tile] > keys[0]:
            start = tile * SHORT_TILE
            _keep_largest(_order(x[start : start + SHORT_TILE]), start, bound, keys, ids)
    return number(top)


@njit(**ROWS)
def _keep_largest(candidates, start, bound, keys, ids):
    """`keys` and the `ids` that go with them are a heap, its smallest on top, of the largest so far; takes in those of
    the candidates from `bound` on. The first candidate has the id `start`."""
    for i in range(candidates.shape[0]):
        if candidates[i] >= bound and candidates[i] > keys[0]:
            keys[0], ids[0] = candidates[i], start + i
            _sift(keys, ids, 0)


@njit(**LOOP)
def _order(x):
    keys = np.empty(x.shape[0], INT)
    for i in range(x.shape[0]):
        keys[i] = ordered(x[i])
    return keys


@njit(**ROWS)
def _sift(keys, ids, place):
    """Restores the heap below `place`."""
    while True:
        smallest = place
        for child in (2 * place + 1, 2 * place + 2):
            if child < keys.shape[0] and keys[child] < keys[smallest]:
                smallest = child
        if smallest == place:
            return
        keys[place], keys[smallest] = keys[smallest], keys[place]
        ids[place], ids[smallest] = ids[smallest], ids[place]
        place = smallest


@njit(**LOOP)
def _largest_key(x):
    """As integers: compilers do not vectorise the maximum of floating-point numbers."""
    top = ordered(x[0])
    for i in range(x.shape[0]):
        top = max(top, ordered(x[i]))
    return top


def _tile_sums(in_place: bool) -> Callable[..., tuple[float, float]]:
    """A kernel for the sums of exp(x') and exp(x') x' with x' = (x - top) * warmth, that keeps exp(x') or not."""

    @njit(**LOOP)
    def tile_sums(x, warmth, top):
        z, weighted = ZERO, ZERO
        for i in range(x.shape[0]):
            shifted = (x[i] - top) * warmth
            weight = exp(shifted)
            z += weight
            weighted += weight * shifted
            if in_place:
                x[i] = weight
        return z, weighted

    return tile_sums


_exp_sums, _exp_sums_ = _tile_sums(False), _tile_sums(True)


@njit(**LOOP)
def _scale_tile(x, warmth, top, factor):
    for i in range(x.shape[0]):
        x[i] = exp((x[i] - top) * warmth) * factor


@njit(**LOOP)
def _forward_tile(p, q, warmth, top_p, top_q, scale):
    total = ZERO
    for i in range(p.shape[0]):
        own, other = (p[i] - top_p) * warmth, (q[i] - top_q) * warmth
        weight = exp(other)
        total += weight * (other - own)
        p[i] = exp(own) - scale * weight
    return total


@njit(**LOOP)
def _mixture_tile(p, q, warmth, top_p, top_q, share):
    """p becomes exp(own) * (log m - own) and q exp(own); sums of the former and of exp(other) * (other - log m)."""
    from_student, from_teacher = ZERO, ZERO
    for i in range(p.shape[0]):
        own, other = (p[i] - top_p) * warmth, (q[i] - top_q) * warmth
        weight, other_weight = exp(own), exp(other)
        log_m = log(max(weight + share * other_weight, TINY))
        product = weight * (log_m - own)
        from_student += product
        from_teacher += other_weight * (other - log_m)
        p[i], q[i] = product, weight
    return from_student, from_teacher


@njit(**LOOP)
def _reverse_tile(p, q, warmth, top_p, top_q):
    total = ZERO
    for i in range(p.shape[0]):
        own, other = (p[i] - top_p) * warmth, (q[i] - top_q) * warmth
        weight = exp(own)
        product = weight * (other - own)
        total += product
        p[i], q[i] = product, weight
    return total


@njit(**LOOP)
def _subtract_tile(p, q, factor):
    for i in range(p.shape[0]):
        p[i] -= factor * q[i]
