"""The student's weights as engines know them: under the names of the model's own files, in the engine's dtype.

    source = WeightSource(student.lm, torch.bfloat16)
    place = publish(source, base, version, rank)  # weights.transport

Shards are cast, then gathered, a layer at a time: never is more than one layer whole. The class has the methods of
vLLM's `WeightSource` (`vllm.distributed.weight_transfer`), whose transfer engines take it as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import build_glob_alternation

from sdpo.models.adapters import STUDENT, adapted, merged, without_adapters
from sdpo.models.file_names import names_in_files, stored_tensors
from sdpo.models.shard import whole

Group = dict[str, torch.Tensor]  # full tensors by the names of the files: a layer, or what is before or behind them


class ParamMeta(NamedTuple):
    """As vLLM's."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


class WeightSource:
    """Of `lm`, sharded or not; an adapter is merged into copies of the weights. dtype: of the floating-point tensors,
    but for those that the family keeps in float32; None leaves all as they are. Gathering is a collective: every rank
    goes through it, to the end."""

    def __init__(self, lm: PreTrainedModel, dtype: torch.dtype | None = None) -> None:
        self._lm, self._dtype = lm, dtype
        self._files = stored_tensors(lm.name_or_path)
        plan = lm._get_dtype_plan(dtype) if dtype else {}
        self._adapted = adapted(lm)
        self._kept = build_glob_alternation(list(plan))[0] if plan else None

    @property
    def tied(self) -> tuple[str, ...]:
        """Names that are left out, because another name has the same tensor."""
        state = self._state()
        again = {name: _bare(state[name]) for name in state.keys() - self._sent(state).keys()}
        return tuple(sorted(names_in_files(self._lm, again, self._files)))

    def gathered(self) -> Iterator[Group]:
        for group in self._by_layer():
            yield self._in_files({name: self._full(name, tensor) for name, tensor in group.items()})

    def join_in(self) -> None:
        """Takes part in a gathering whose result another rank wants."""
        for _ in self.gathered():
            pass

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for group in self.gathered():
            yield from group.items()

    def metadata(self) -> list[ParamMeta]:
        """What iterating will give; nothing is gathered for it."""
        return [ParamMeta(name, t.dtype, tuple(t.shape)) for group in self._bare() for name, t in group.items()]

    def groups(self) -> list[list[str]]:
        return [list(group) for group in self._bare()]

    def iter_groups(self) -> Iterator[tuple[list[str], list[torch.Tensor]]]:
        for group in self.gathered():
            yield list(group), list(group.values())

    def held_names(self) -> None:
        """All of them: every rank has a part of every tensor."""

    def _bare(self) -> Iterator[Group]:
        for group in self._by_layer():
            yield self._in_files({name: _bare(t, self._wire_dtype(name, t)) for name, t in group.items()})

    def _in_files(self, group: Group) -> Group:
        named = names_in_files(self._lm, group, self._files)
        return {name: tensor.contiguous() for name, tensor in named.items()}

    def _by_layer(self) -> list[Group]:
        """By the names in memory, split at the outermost number of a name."""
        layers: dict[str, Group] = {}
        before: Group = {}
        behind: Group = {}
        for name, tensor in self._sent(self._state()).items():
            number = re.match(r"(\D+\.)?\d+(?=\.)", name)
            if number:
                layers.setdefault(number[0], {})[name] = tensor
            else:
                (behind if layers else before)[name] = tensor
        return [group for group in (before, *layers.values(), behind) if group]

    def _state(self) -> Group:
        return without_adapters(self._lm.state_dict(keep_vars=True))

    def _sent(self, state: Group) -> Group:
        """Of the names of one tensor the one that the family ties others to."""
        targets = getattr(self._lm, "all_tied_weights_keys", {})
        chosen: dict[int, str] = {}
        for name in sorted(state, key=targets.__contains__):
            chosen.setdefault(id(state[name]), name)
        return {name: tensor for name, tensor in state.items() if chosen[id(tensor)] == name}

    def _wire_dtype(self, name: str, tensor: torch.Tensor) -> torch.dtype:
        if self._dtype is None or not tensor.is_floating_point() or (self._kept and self._kept.search(name)):
            return tensor.dtype
        return self._dtype

    def _full(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        layer = self._adapted.get(name.removesuffix(".weight"))
        own = merged(layer, STUDENT) if layer is not None else tensor.detach()
        return whole(own.to(self._wire_dtype(name, tensor)))


def _bare(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Shape and dtype alone."""
    return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device="meta")
