"""The output head, a few tokens at a time: chunks, and the matrix products of one.

Everything that depends on the vocabulary happens here chunk by chunk, so that no tensor of all tokens times the
vocabulary exists. Logits and gradients are float32 (float64 in float64) whatever the head's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch

CHUNK_BYTES = {"cpu": 72 * 2**20, "cuda": 2**30}  # logits of all sides together
MIN_TOKENS = 128  # a matrix product of fewer rows is bound by reading the head
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
    largest = max(MIN_TOKENS, CHUNK_BYTES.get(like.device.type, CHUNK_BYTES["cpu"]) // per_token)
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
    for rows, piece in pieces(weight, out.dtype):
        add_product(out[:, rows], hidden, piece.T, weight.dtype, beta, alpha)
    return out if bias is None else out.add_(bias, alpha=alpha)


def pieces(weight: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, torch.Tensor]]:
    """The head as it is, or piece by piece in `dtype` where a product of its own dtype would round the sums."""
    if weight.dtype == dtype or weight.is_cuda:
        yield slice(None), weight
    else:
        for rows in parts(weight.shape[0], WIDENED_ROWS):
            yield rows, weight[rows].to(dtype)


def add_product(
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
