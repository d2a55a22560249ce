"""Which code works on a chunk of logits: Triton's or Numba's kernels where they fit and are installed, else torch's.

All give the same numbers within float32's rounding; float64 is torch's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

import torch

from sdpo.kernels import chunk_terms

MIN_COMPILED = 4096  # entries of a row: below, two seconds of compiling for the CPU do not pay


def distillation_terms(logits: torch.Tensor) -> Callable[..., torch.Tensor]:
    """`chunk_terms.chunk_terms_` for such logits [..., V]."""
    if logits.is_cuda and logits.dtype == torch.float32 and find_spec("triton") is not None:
        from sdpo.kernels import triton_terms

        return triton_terms.chunk_terms_
    return softmax_terms(logits).chunk_terms_


def softmax_terms(logits: torch.Tensor) -> ModuleType:
    """The module whose `softmax_` and `through_softmax_` take such logits [..., V]."""
    plain = logits.device.type == "cpu" and logits.dtype == torch.float32
    if plain and logits.shape[-1] >= MIN_COMPILED and find_spec("numba") is not None:
        from sdpo.kernels import numba_terms

        return numba_terms
    return chunk_terms
