"""What token sequences have in common, stored and computed once.

A hidden state of a causal model depends on nothing but the tokens up to it. So sequences that begin alike, such as the
responses to one prompt or the reprompts of one problem, share those states exactly; gradients add up where they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tokens = Sequence[int]


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
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    tokens: list[int] = []
    places: list[Tensor] = [torch.empty(0, dtype=torch.int64)] * len(sequences)
    runs: list[tuple[int, Tensor]] = []
    previous: Tokens = ()
    path = places[0] if places else torch.empty(0, dtype=torch.int64)
    for i in order:
        sequence = sequences[i]
        shared = shared_length(previous, sequence)
        added = len(sequence) - shared
        path = torch.cat([path[:shared], torch.arange(len(tokens), len(tokens) + added)])
        tokens += sequence[shared:]
        places[i], previous = path, sequence
        if added:
            runs.append((added, path))
    return _tree(tokens, runs), places


def _tree(tokens: list[int], runs: list[tuple[int, Tensor]]) -> PrefixTree:
    return PrefixTree(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        depth=torch.cat([torch.arange(len(path) - added, len(path)) for added, path in runs]),
        run_lengths=torch.tensor([added for added, _ in runs]),
        path_lengths=torch.tensor([len(path) for _, path in runs]),
        path_places=torch.cat([path for _, path in runs]),
    )


def shared_length(a: Tokens, b: Tokens) -> int:
    """Tokens at the beginning that two sequences have in common."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count


def tree_size(sequences: Sequence[Tokens]) -> int:
    """Tokens of the tree of these sequences."""
    ordered = sorted(sequences, key=list)
    shared = sum(shared_length(a, b) for a, b in zip(ordered, ordered[1:], strict=False))
    return sum(map(len, ordered)) - shared
