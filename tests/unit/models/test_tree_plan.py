"""Who sees whom in a prefix tree, by brute force along each path; layers that are no attention see the same."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from sdpo.models import tree_mixers
from sdpo.models.tree_mixers import Pieces, computed_for_each_row, read_trees_in_mixers
from sdpo.models.tree_plan import TreePlan, kind_of, reading
from sdpo.tokens.prefix_tree import build_tree

SIZES = st.none() | st.integers(1, 9)
SEQUENCES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=8)


@given(SEQUENCES, SIZES, SIZES)
def test_a_token_sees_its_path_within_its_window_and_its_chunk(sequences: list, window: int | None, chunk) -> None:
    tree, paths = build_tree(sequences)
    seen: dict[int, set[int]] = {}
    mask = TreePlan(tree).mask(window, chunk)
    for batch, masks in zip(mask.rows.batches, mask.masks, strict=True):
        for b, q in batch.wanted.nonzero().tolist():
            place = int(batch.queries[b, q])
            assert place not in seen
            seen[place] = set(batch.places[b][masks[b, 0, q]].tolist())
    for path in (path.tolist() for path in paths):
        for depth, place in enumerate(path):
            first = max(0, depth + 1 - (window or depth + 1), depth // chunk * chunk if chunk else 0)
            assert seen[place] == set(path[first : depth + 1])


@pytest.mark.parametrize("size", range(1, 10))
def test_the_rules_of_transformers_are_told_apart(size: int) -> None:
    first = torch.zeros(1, dtype=torch.int64)
    assert kind_of(causal_mask_function, None, "cpu") == (None, None)
    assert kind_of(sliding_window_causal_mask_function(size), size, "cpu") == (size, None)
    chunked = kind_of(chunked_causal_mask_function(size, first), size, "cpu")
    assert chunked == ((None, size) if size > 1 else (1, None))  # both see nothing but the token itself
    assert kind_of(bidirectional_mask_function, None, "cpu") is None


class Qwen3LikeGatedDeltaNet(nn.Module):
    """h = h / 2 + x, and the last two tokens; continues from a cache as transformers' layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def forward(self, hidden_states: Tensor, cache_params=None, attention_mask=None) -> Tensor:
        rows, length, width = hidden_states.shape
        self.calls.append(rows * length)
        states, before = torch.zeros(rows, width), torch.zeros(rows, 2, width)
        if cache_params is not None and cache_params.has_previous_state(7):
            assert length > 1
            states, before = cache_params.layers[7].recurrent_states, cache_params.layers[7].conv_states
        every = torch.cat([before, hidden_states], dim=1)
        found = []
        for i in range(length):
            states = states / 2 + every[:, i + 2]
            found.append(states + every[:, i + 1] - every[:, i])
        if cache_params is not None:
            cache_params.update_conv_state(every[:, -2:], 7)
            cache_params.update_recurrent_state(states, 7)
        return torch.stack(found, dim=1)


class LikeMambaMixer(nn.Module):
    def forward(self, hidden_states: Tensor, cache_params=None, attention_mask=None) -> tuple[Tensor, str]:
        return hidden_states.cumsum(1), "a state"


class LikeShortConv(nn.Module):
    L_cache = 3

    def forward(self, hidden_states: Tensor, past_key_values=None, attention_mask=None) -> Tensor:
        padded = nn.functional.pad(hidden_states, (0, 0, 2, 0))
        return padded[:, :-2] + 2 * padded[:, 1:-1] + 4 * padded[:, 2:]


@settings(max_examples=60)
@given(SEQUENCES, st.integers(2, 5), st.sampled_from([Qwen3LikeGatedDeltaNet, LikeMambaMixer, LikeShortConv]))
def test_layers_that_are_no_attention_answer_as_for_each_sequence_alone(
    sequences: list, least: int, kind: Callable[[], nn.Module]
) -> None:
    tree, paths = build_tree(sequences)
    layer, values = kind(), torch.randn(len(tree.tokens), 2, generator=torch.Generator().manual_seed(0))
    alone = [layer(values[path][None]) for path in paths]
    read_trees_in_mixers(layer)
    with reading(TreePlan(tree)), mock.patch.object(tree_mixers, "LEAST", least):
        found = layer(values[None], attention_mask=torch.ones(1, len(values)))
    assert isinstance(found, tuple) is (kind is LikeMambaMixer)
    for path, own in zip(paths, alone, strict=True):
        states = [one[0] if isinstance(one, tuple) else one for one in (found, own)]
        torch.testing.assert_close(states[0][0, path], states[1][0])


def test_a_state_is_handed_on_where_prompts_branch() -> None:
    """Eight responses behind a prompt, behind a system prompt: every token once, three calls."""
    system, prompts = list(range(100)), [[200 + i] * 50 for i in range(2)]
    sequences = [system + prompt + [300 + i] * 20 for prompt in prompts for i in range(8)]
    tree, _ = build_tree(sequences)
    layer = Qwen3LikeGatedDeltaNet()
    read_trees_in_mixers(layer)
    with reading(TreePlan(tree)):
        layer(torch.randn(1, len(tree.tokens), 2))
    assert layer.calls == [100, 2 * 50, 16 * 20] and sum(layer.calls) == len(tree.tokens)
    assert [len(named) for named in Pieces(TreePlan(tree)).named] == [1, 2, 0]


def test_layers_that_compute_whole_rows_are_named() -> None:
    assert computed_for_each_row(nn.Sequential(LikeShortConv(), LikeMambaMixer())) == "LikeMambaMixer"
    assert computed_for_each_row(nn.Sequential(LikeShortConv(), Qwen3LikeGatedDeltaNet())) is None
