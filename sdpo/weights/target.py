"""Arrived weights for a module of transformers: from the names of the files back to its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from transformers import PreTrainedModel

from sdpo.errors import RolloutError, problem
from sdpo.models.file_names import names_in_model
from sdpo.models.shard import local, part_of
from sdpo.weights.source import Group


def by_own_name(lm: PreTrainedModel, groups: Iterable[Group]) -> Iterator[Group]:
    """The groups by the names of `lm.state_dict()`, full tensors as they arrived. A name may be missing only when its
    tensor has another one, too. Raises RolloutError for missing, unknown and misshapen tensors."""
    own = lm.state_dict(keep_vars=True)
    given: set[int] = set()
    for group in groups:
        named = names_in_model(lm, group, own)
        _refuse("unknown", named.keys() - own.keys())
        _refuse("misshapen", [name for name, tensor in named.items() if own[name].shape != tensor.shape])
        given.update(id(own[name]) for name in named)
        yield named
    _refuse("missing", [name for name, tensor in own.items() if id(tensor) not in given])


@torch.no_grad()
def load_into(lm: PreTrainedModel, groups: Iterable[Group]) -> None:
    """Copies the weights in place into parameters and persistent buffers of `lm`, sharded or not, cast to their dtype
    and device."""
    own = lm.state_dict(keep_vars=True)
    for group in by_own_name(lm, groups):
        for name, tensor in group.items():
            local(own[name]).copy_(part_of(tensor, own[name]))


def _refuse(field: str, names: Collection[str]) -> None:
    if names:
        fix = "same architecture on both sides"
        raise RolloutError(problem(f"weights.{field}", sorted(names)[:3], "the tensors of the model", fix))
