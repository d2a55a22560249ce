"""A prefix tree holds exactly its sequences, each common beginning once."""

from __future__ import annotations

import random

import pytest

from sdpo.tokens.prefix_tree import build_tree, shared_length, tree_size


def test_two_sequences_share_their_beginning() -> None:
    tree, places = build_tree([[5, 6, 8, 9], [5, 6, 7]])
    assert tree.tokens.tolist() == [5, 6, 7, 8, 9] and tree.depth.tolist() == [0, 1, 2, 2, 3]
    assert tree.run_lengths.tolist() == [3, 2] and tree.path_lengths.tolist() == [3, 4]
    assert tree.path_places.tolist() == [0, 1, 2, 0, 1, 3, 4]
    assert [p.tolist() for p in places] == [[0, 1, 3, 4], [0, 1, 2]]


def test_equal_sequences_and_beginnings_of_others_add_nothing() -> None:
    tree, places = build_tree([[1, 2, 3], [1, 2], [1, 2, 3]])
    assert tree.tokens.tolist() == [1, 2, 3] and tree.run_lengths.tolist() == [2, 1]
    assert places[0].tolist() == places[2].tolist() == [0, 1, 2] and places[1].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_any_sequences_can_be_read_back_and_no_prefix_is_stored_twice(seed: int) -> None:
    rng = random.Random(seed)
    sequences = [[rng.randrange(3) for _ in range(rng.randint(1, 8))] for _ in range(12)]
    tree, places = build_tree(sequences)
    assert [tree.tokens[path].tolist() for path in places] == sequences
    prefixes = {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}
    assert len(tree.tokens) == len(prefixes) == tree_size(sequences)
    start = 0
    for length, path in zip(tree.run_lengths.tolist(), tree.path_places.split(tree.path_lengths.tolist()), strict=True):
        assert path[-length:].tolist() == list(range(start, start + length))  # a run is the end of its own path
        assert tree.depth[path].tolist() == list(range(len(path)))
        start += length
    assert start == len(tree.tokens)


def test_sizes_of_nothing() -> None:
    assert tree_size([]) == 0 and shared_length([], [1]) == 0
