"""Recurrent and convolutional layers over a prefix tree.

Such a layer mixes tokens in the order it gets them. So it is called with rows, and its answers go back to their places
in the tree; all other layers of the model share what rows begin with alike. Where a row starts depends on the layer:

- one whose state can be handed on (the gated delta rule of Qwen3-Next and Qwen3.5): where the row branches off;
- a short convolution (LFM2): as many tokens before as it looks back;
- any other: at its beginning, and shared tokens are computed for each row.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from sdpo.models.tree_plan import Rows, TreePlan, plan_of_pass, row_batch, similar
from sdpo.tokens.prefix_tree import PrefixTree

# Classes of transformers, called with hidden states, a cache and a mask.
HANDS_ON = re.compile(r"Qwen3\w+GatedDeltaNet")  # continues from a cache by many tokens, and autograd follows it there
SHORT = re.compile(r"\w+ShortConv")
FROM_THE_START = re.compile(
    r"\w*(Mamba2?Mixer|MambaLayer)|(Bamba|FalconH1)Mixer|\w+LightningAttention|OlmoHybridGatedDeltaNet"
)
LEAST = 16  # tokens: a state behind fewer is not worth a call of its own

Layer = Callable[..., Any]


def read_trees_in_mixers(model: nn.Module) -> None:
    """Makes layers that are no attention read the tree of a pass (`tree_plan.reading`)."""
    for module in model.modules():
        name = type(module).__name__
        if any(kind.fullmatch(name) for kind in (HANDS_ON, SHORT, FROM_THE_START)):
            module.forward = MethodType(_mix, module)  # copied with its module, unlike a partial


def computed_for_each_row(model: nn.Module) -> str | None:
    """The class of layers that compute shared tokens for each row; None when there are none."""
    names = (type(part).__name__ for part in model.modules())
    return next((name for name in names if FROM_THE_START.fullmatch(name)), None)


def _mix(module: nn.Module, hidden_states: Tensor, **options: Any) -> Any:
    plan, forward = plan_of_pass(), partial(type(module).forward, module)
    if plan is None:
        return forward(hidden_states, **options)
    options |= {"attention_mask": None}  # only the ends of rows are padded, and nothing looks back to them
    over = _branching if HANDS_ON.fullmatch(type(module).__name__) else _in_rows
    return over(plan, module, partial(forward, **options), hidden_states[0])


def _in_rows(plan: TreePlan, module: nn.Module, forward: Layer, hidden: Tensor) -> Any:
    rows = plan.rows(getattr(module, "L_cache", None), by_row=True)
    return _in_the_tree([forward(hidden[batch.places]) for batch in rows.batches], rows)


def _branching(plan: TreePlan, module: nn.Module, forward: Layer, hidden: Tensor) -> Any:
    pieces: Pieces = plan.once(Pieces)
    found: list[Any] = []
    states: dict[int, tuple[Tensor, Tensor]] = {}
    for batch, behind, named in zip(pieces.batches, pieces.behind, pieces.named, strict=True):
        state = _State([states[name] for name in behind])
        found.append(forward(hidden[batch.places], cache_params=state if behind or named else None))
        states |= dict(zip(named, state.of_each_row(), strict=True)) if named else {}
    return _in_the_tree(found, pieces)


def _in_the_tree(found: list[Any], rows: Rows) -> Any:
    """From answers [B, k, H] of the batches to that of the tree, [1, T, H]."""
    more = found[0][1:] if isinstance(found[0], tuple) else None  # a state, which nobody asks for in training
    answers = [one if more is None else one[0] for one in found]
    runs = [
        answer.gather(1, batch.run[..., None].expand(-1, -1, answer.shape[-1])).flatten(0, 1)
        for answer, batch in zip(answers, rows.batches, strict=True)
    ]
    whole = torch.cat(runs).index_select(0, rows.unpadding)[None]
    return whole if more is None else (whole, *(None for _ in more))


class _State:
    """Stands where a layer wants a cache of transformers, whose copies in place autograd could not follow."""

    def __init__(self, before: list[tuple[Tensor, Tensor]]) -> None:
        self.before = bool(before)
        self.layers: defaultdict[int, _State] = defaultdict(lambda: self)
        if before:
            self.conv_states, self.recurrent_states = (torch.cat(rows) for rows in zip(*before, strict=True))

    def has_previous_state(self, layer_idx: int) -> bool:
        return self.before

    def update_conv_state(self, state: Tensor, layer_idx: int) -> None:
        self.conv_states = state

    def update_recurrent_state(self, state: Tensor, layer_idx: int) -> None:
        self.recurrent_states = state

    def of_each_row(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.conv_states.split(1), self.recurrent_states.split(1), strict=True))


@dataclass(frozen=True)
class _Piece:
    """A part of a path, from a state to a state."""

    level: int  # states that were handed on before
    behind: int | None  # the state it starts from
    named: int | None  # the state it ends in, where others start
    places: Tensor
    wanted: int  # the last of them; those before are computed again


class Pieces(Rows):
    """The runs of a tree, cut where others branch off and `LEAST` tokens lie between. Batches come after those whose
    states they start from; `behind` and `named` are the states of their rows, or empty."""

    def __init__(self, plan: TreePlan) -> None:
        groups: dict[tuple[int, bool, int], list[_Piece]] = {}
        for piece in _cut(plan.on_cpu):  # a state is that of the last token: no row that is to end in one is padded
            length = 0 if piece.named is None else len(piece.places)
            groups.setdefault((piece.level, piece.behind is None, length), []).append(piece)
        batches = []
        self.behind: list[list[int]] = []
        self.named: list[list[int]] = []
        for _, group in sorted(groups.items(), key=lambda item: item[0]):
            lengths = [len(piece.places) for piece in group]
            for part in similar(sorted(range(len(group)), key=lambda i: -lengths[i]), lengths):
                pieces = [group[i] for i in part]
                # Two columns at least: by one token alone, transformers continues a sequence in place.
                batches.append(
                    row_batch([piece.places for piece in pieces], [piece.wanted for piece in pieces], least=2)
                )
                self.behind.append([piece.behind for piece in pieces if piece.behind is not None])
                self.named.append([piece.named for piece in pieces if piece.named is not None])
        super().__init__(batches, plan.tree.tokens.device)


def _cut(tree: PrefixTree) -> Iterator[_Piece]:
    """All pieces; each comes after the one whose state it starts from."""
    lengths, paths = tree.run_lengths.tolist(), tree.path_places.split(tree.path_lengths.tolist())
    starts = (tree.run_lengths.cumsum(0) - tree.run_lengths).tolist()
    depths = [len(path) - length for path, length in zip(paths, lengths, strict=True)]  # where runs begin
    parents = [
        bisect_right(starts, path[depth - 1]) - 1 if depth else 0 for path, depth in zip(paths, depths, strict=True)
    ]
    branches: list[set[int]] = [set() for _ in lengths]
    for parent, depth in zip(parents, depths, strict=True):
        branches[parent].add(depth)
    names = itertools.count()
    states: list[list[tuple[int, int, int | None]]] = []  # of each run: (depth, level, name), from the first
    for path, parent, begin, cuts in zip(paths, parents, depths, branches, strict=True):
        start, level, behind = max(state for state in states[parent] if state[0] <= begin) if begin else (0, 0, None)
        states.append([(start, level, behind)])
        for cut in sorted(cuts):
            if cut - start >= LEAST:
                name = next(names)
                yield _Piece(level, behind, name, path[start:cut], cut - max(start, begin))
                start, level, behind = cut, level + 1, name
                states[-1].append((start, level, behind))
        if start < len(path):
            yield _Piece(level, behind, None, path[start:], len(path) - max(start, begin))
