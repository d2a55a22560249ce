"""The gradient that the chunks of a loss leave behind, by hidden states, head and bias."""

from __future__ import annotations

import torch

from sdpo.kernels.head import add_product, pieces, wide
from sdpo.kernels.lazy_logits import ResponseScores


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
            for rows, piece in pieces(scores.weight[vocab], slope.dtype):
                first = rows.start in (None, 0)
                add_product(self.hidden[part], slope[:, rows], piece, scores.weight.dtype, beta=0.0 if first else 1.0)
            self.hidden[part].mul_(column)
        if self.weight is not None:
            # Weighting the [n, H] side spares a pass over the vocabulary.
            weighted = scores.hidden[part] * column
            kept = 1.0 if self.in_place else beta
            add_product(self.weight[vocab], slope.T, weighted, scores.weight.dtype, kept)
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
