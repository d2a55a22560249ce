"""The output head, a few tokens at a time: logits of a chunk, and the gradient a chunk leaves behind.

Everything that depends on the vocabulary happens here chunk by chunk, so that no tensor of all tokens times the
vocabulary exists. Logits and gradients are float32 (float64 in float64) whatever the head's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sdpo.algorithms.scores import ResponseScores

CHUNK_BYTES = {"cpu": 72 * 2**20, "cuda": 2**30}  # logits of all sides together
FEWEST_TOKENS = 128  # a matrix product of fewer rows is bound by reading the head
COPIED_ROWS = range(57, 73)  # products of so many rows make MKL keep a second copy of the result, and take longer
BLOCK_ENTRIES = 2**18  # of a chunk, passed through the softmax at once on a CPU: what its caches hold
WIDENED_ROWS = 4096  # of a half-precision head, widened at once where the hardware does not accumulate in float32


def wide(dtype: torch.dtype) -> torch.dtype:
    """What logits and their gradients are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def token_chunks(tokens: int, vocab_size: int, like: torch.Tensor, sides: int = 2) -> list[slice]:
    """Parts of the tokens, the first the largest, as many as the memory budget of `like`'s device asks for.

    sides: tensors of logits that a chunk holds."""
    per_token = sides * vocab_size * wide(like.dtype).itemsize
    largest = max(FEWEST_TOKENS, CHUNK_BYTES.get(like.device.type, CHUNK_BYTES["cpu"]) // per_token)
    chunks = parts(tokens, largest)
    if len(chunks) > 1 and tokens // len(chunks) in COPIED_ROWS and like.device.type == "cpu":
        return [slice(start, min(start + largest, tokens)) for start in range(0, tokens, largest)]
    return chunks


def row_blocks(chunk: torch.Tensor) -> list[slice]:
    """Rows of a chunk [n, V] that stay in the caches together, equally many for every thread; a GPU takes all."""
    tokens, width = chunk.shape
    if chunk.device.type != "cpu":
        return [slice(0, tokens)]
    size, threads = BLOCK_ENTRIES // width, torch.get_num_threads()
    size = max(1, size - size % threads if size > threads else size)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def parts(total: int, largest: int) -> list[slice]:
    """[0, total) in as few parts as possible, none above `largest`, the longer by one first.

    >>> parts(10, 4)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    count = math.ceil(total / largest)
    bounds = [math.ceil(total * number / count) for number in range(count + 1)] if count else []
    return [slice(*pair) for pair in pairwise(bounds)]


def head_product(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> torch.Tensor:
    """out [n, V] = beta * out + alpha * (hidden [n, H] @ weight [V, H].T + bias [V])."""
    for rows, piece in _pieces(weight, out.dtype):
        _add_product(out[:, rows], hidden, piece.T, weight.dtype, beta, alpha)
    return out if bias is None else out.add_(bias, alpha=alpha)


def _pieces(weight: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    """The head as it is, or piece by piece in `dtype` where a product of its own dtype would round the sums."""
    if weight.dtype == dtype or weight.is_cuda:
        yield slice(None), weight
    else:
        for rows in parts(weight.shape[0], WIDENED_ROWS):
            yield rows, weight[rows].to(dtype)


def _add_product(
    out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, beta: float = 1.0, alpha: float = 1.0
) -> None:
    """out = beta * out + alpha * a @ b. A GPU rounds the factors to `dtype`, the head's, and adds up in out's dtype."""
    if out.is_cuda and dtype != out.dtype:
        torch.addmm(out, a.to(dtype), b.to(dtype), out.dtype, beta=beta, alpha=alpha, out=out)
    else:
        torch.addmm(out, a.to(out.dtype), b.to(out.dtype), beta=beta, alpha=alpha, out=out)


@contextmanager
def through_soft_cap(logits: torch.Tensor, soft_cap: float | None) -> Iterator[torch.Tensor]:
    """Within, `logits` is replaced in place by a derivative with respect to it; behind, it is one with respect to the
    logits before the cap."""
    inner = None if soft_cap is None else 1.0 - (logits / soft_cap).square_()
    yield logits
    if inner is not None:
        logits.mul_(inner)


class HeadGradient:
    """Gradients of one loss by a student's hidden states, head and bias, added up chunk by chunk.

    wanted: which of hidden, weight and bias need one.
    in_place: that of the weight is added to `scores.weight_gradient`, if there is one, and not handed out.
    """

    def __init__(self, scores: ResponseScores, wanted: tuple[bool, ...], in_place: bool) -> None:
        self.scores, self.empty = scores, True
        self.in_place = in_place and wanted[1] and scores.weight_gradient is not None
        self.hidden, self.bias = _room(scores.hidden, wanted[0]), _room(scores.bias, wanted[2])
        self.weight = scores.weight_gradient if self.in_place else _room(scores.weight, wanted[1])

    def add(self, part: slice, slope: torch.Tensor, token_weights: torch.Tensor) -> None:
        """slope [n, V]: derivative of each token's own loss by the scaled logits before the soft cap, to be multiplied
        by token_weights [n]. Every token comes once."""
        scores, vocab = self.scores, slice(0, self.scores.vocab_size)
        token_weights = token_weights * scores.scale
        column = token_weights[:, None]
        beta = 0.0 if self.empty else 1.0  # the first chunk overwrites: one pass over the gradient less than zeros
        self.empty = False
        if scores.weight is None:
            if self.hidden is not None:
                torch.mul(slope, column, out=self.hidden[part, vocab])
            return
        if self.hidden is not None:
            for rows, piece in _pieces(scores.weight[vocab], slope.dtype):
                first = rows.start in (None, 0)
                _add_product(self.hidden[part], slope[:, rows], piece, scores.weight.dtype, beta=0.0 if first else 1.0)
            self.hidden[part].mul_(column)
        if self.weight is not None:
            # Weighting the [n, H] side spares a pass over the vocabulary.
            weighted = scores.hidden[part] * column
            kept = 1.0 if self.in_place else beta
            _add_product(self.weight[vocab], slope.T, weighted, scores.weight.dtype, kept)
        if self.bias is not None:
            self.bias[vocab].addmv_(slope.T, token_weights, beta=beta)

    def scaled(self, factor: torch.Tensor | float = 1.0) -> tuple[torch.Tensor | None, ...]:
        """The gradients (hidden, weight, bias) times a scalar; consumes this object."""
        if self.in_place:
            if factor != 1.0:
                raise RuntimeError(f"the gradient of the head has been added times 1, not times {float(factor):g}")
            self.weight = None
        self._clear_padding()
        found = self.hidden, self.weight, self.bias
        self.hidden = self.weight = self.bias = None
        if factor != 1.0:
            for tensor in found:
                if tensor is not None:
                    tensor.mul_(factor)
        return found

    def _clear_padding(self) -> None:
        """Entries that no chunk writes: beyond the vocabulary, or all of them where there was no token."""
        start = 0 if self.empty else self.scores.vocab_size
        for tensor in (self.weight, self.bias):
            if tensor is not None:
                tensor[start:].zero_()
        if self.scores.weight is None and self.hidden is not None:
            self.hidden[:, start:].zero_()


def _room(like: torch.Tensor | None, wanted: bool) -> torch.Tensor | None:
    """For a gradient."""
    return torch.empty_like(like, dtype=wide(like.dtype)) if like is not None and wanted else None
