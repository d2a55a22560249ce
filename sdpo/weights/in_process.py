"""Weights from one module, or from read tensors, into a module of the same process."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from sdpo.errors import RolloutError, problem


@torch.no_grad()
def load_into(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy `tensors` (Hugging Face names, full shapes) in place into parameters and persistent buffers of `module`,
    cast to their dtype and device.

    A name may be missing only when its tensor is tied to one that is there (an output head tied to the embedding).
    Raises RolloutError for missing, unknown and misshapen tensors, before anything is changed.
    """
    own = module.state_dict(keep_vars=True)
    unknown = sorted(set(tensors) - set(own))
    given = {own[name].data_ptr() for name in tensors if name in own}
    missing = sorted(name for name in own if name not in tensors and own[name].data_ptr() not in given)
    misshapen = sorted(name for name in tensors if name in own and own[name].shape != tensors[name].shape)
    for field, names in (("unknown", unknown), ("missing", missing), ("misshapen", misshapen)):
        if names:
            raise RolloutError(
                problem(f"weights.{field}", names[:3], "the tensors of the model", "same architecture on both sides")
            )
    for name, tensor in tensors.items():
        own[name].copy_(tensor)


def copy_module(source: nn.Module, target: nn.Module) -> None:
    """The weights of `source` into `target`. Raises RolloutError when they are not of the same architecture."""
    load_into(target, source.state_dict())
