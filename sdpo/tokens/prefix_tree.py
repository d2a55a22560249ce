"""What token sequences have in common, stored and computed once.

A hidden state of a causal model depends on nothing but the tokens up to it. So sequences that begin alike, such as the
responses to one prompt or the reprompts of one problem, share those states exactly; gradients add up where they meet.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Tokens = Sequence[int]
_BYTES = 4  # of an id in a key


@dataclass(frozen=True)
class PrefixTree:
    """T tokens that hold all sequences, each common beginning once; what a sequence adds is one run of them. All int64.

    Run s is the queries `[sum(run_lengths[:s]), ...)`; it sees its whole sequence so far, itself included: the
    `path_lengths[s]` places in its piece of `path_places`. Its last query sees all of them, the one before all but one.

    Example: [5, 6, 7] and [5, 6, 8, 9] -> tokens [5, 6, 7, 8, 9], depth [0, 1, 2, 2, 3], run_lengths [3, 2],
    path_lengths [3, 4], path_places [0, 1, 2, 0, 1, 3, 4].
    """

    tokens: Tensor  # [T]
    depth: Tensor  # [T], place in its sequence, from 0
    run_lengths: Tensor  # [S], at least 1, sum T
    path_lengths: Tensor  # [S], at least the run's
    path_places: Tensor  # [sum of path_lengths], values in [0, T)

    def to(self, device: torch.device | str) -> PrefixTree:
        return PrefixTree(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def build_tree(sequences: Sequence[Tokens]) -> tuple[PrefixTree, list[Tensor]]:
    """The tree, and for each sequence the places [its length] of its tokens in the tree. No sequence may be empty."""
    keys = [sort_key(sequence) for sequence in sequences]
    tokens: list[Tensor] = []
    places: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * len(sequences)
    runs: list[tuple[int, Tensor]] = []
    previous, size = b"", 0
    path = places[0] if places else torch.empty(0, dtype=torch.int64)
    for i in sorted(range(len(sequences)), key=keys.__getitem__):
        shared = _shared(previous, keys[i])
        added = len(sequences[i]) - shared
        path = torch.cat([path[:shared], torch.arange(size, size + added)])
        places[i], previous, size = path, keys[i], size + added
        if added:
            tokens.append(id_tensor(sequences[i][shared:]))
            runs.append((added, path))
    return _tree(tokens, runs), places


def _tree(tokens: list[Tensor], runs: list[tuple[int, Tensor]]) -> PrefixTree:
    return PrefixTree(
        tokens=torch.cat(tokens),
        depth=torch.cat([torch.arange(len(path) - added, len(path)) for added, path in runs]),
        run_lengths=torch.tensor([added for added, _ in runs]),
        path_lengths=torch.tensor([len(path) for _, path in runs]),
        path_places=torch.cat([path for _, path in runs]),
    )


def id_tensor(ids: Tokens) -> Tensor:
    """int64 [len(ids)]."""
    return torch.from_numpy(np.asarray(ids, dtype=np.int64))


def sort_key(ids: Tokens) -> bytes:
    """Bytes that sort as the sequences do: where beginnings are alike, in the order of the ids behind them."""
    return np.asarray(ids, dtype=np.int32).astype(">i4").tobytes()


def shared_length(a: Tokens, b: Tokens) -> int:
    """Tokens at the beginning that two sequences have in common."""
    return _shared(sort_key(a), sort_key(b))


def _shared(a: bytes, b: bytes) -> int:
    count = min(len(a), len(b)) // _BYTES
    differ = np.frombuffer(a, np.int32, count) != np.frombuffer(b, np.int32, count)
    first = int(differ.argmax()) if count else 0
    return first if count and differ[first] else count


class TreeSize:
    """Counts the tokens of a tree as sequences come, each in one search: what it adds is what neither of its neighbours
    in the order of the keys has in common with it."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.tokens = 0

    def add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            place = bisect.bisect(self.keys, key)
            shared = max((_shared(key, other) for other in self.keys[max(0, place - 1) : place + 1]), default=0)
            self.tokens += len(key) // _BYTES - shared
            self.keys.insert(place, key)


def tree_size(sequences: Sequence[Tokens]) -> int:
    """Tokens of the tree of these sequences."""
    size = TreeSize()
    size.add(map(sort_key, sequences))
    return size.tokens
