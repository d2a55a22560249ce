"""A key-value cache with room to grow, for the Hugging Face engine."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

ROOM = 128  # tokens


class RoomyLayer(DynamicLayer):
    """transformers' layer joins old and new tokens into a new tensor each time; this one writes into a buffer with room
    for `ROOM` more and hands out views of it."""

    keys: torch.Tensor
    values: torch.Tensor
    _buffers: tuple[torch.Tensor, torch.Tensor] | None = None  # [R, heads, room, D]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        if self._buffers is None or new > self._buffers[0].shape[-2]:
            self._buffers = tuple(self._room(states, new + ROOM) for states in (key_states, value_states))
            if old:
                self._buffers[0][..., :old, :] = self.keys
                self._buffers[1][..., :old, :] = self.values
        keys, values = self._buffers
        keys[..., old:new, :] = key_states
        values[..., old:new, :] = value_states
        self.keys, self.values = keys[..., :new, :], values[..., :new, :]
        return self.keys, self.values

    @staticmethod
    def _room(like: torch.Tensor, tokens: int) -> torch.Tensor:
        return like.new_empty(*like.shape[:-2], tokens, like.shape[-1])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._buffers = None  # of another number of rows

    def drop_first(self, tokens: int) -> None:
        self.keys, self.values = self.keys[..., tokens:, :], self.values[..., tokens:, :]
        self._buffers = None


def roomy_cache(config: PreTrainedConfig) -> DynamicCache:
    """The cache that the model wants; only layers that keep every token are exchanged."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(config) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def holds_something(layer: Any) -> bool:
    return any(getattr(layer, f"is_{name}initialized", False) for name in ("", "conv_states_", "recurrent_states_"))


def keep_rows(cache: DynamicCache, rows: torch.Tensor) -> None:
    """Row i is then what row rows[i] was. transformers' own way leaves recurrent and convolution states out."""
    for layer in cache.layers:
        if isinstance(layer, LinearAttentionCacheLayerMixin):
            for name in ("conv_states", "recurrent_states"):
                if getattr(layer, f"is_{name}_initialized"):
                    setattr(layer, name, getattr(layer, name)[rows])
        if isinstance(layer, DynamicLayer) or not isinstance(layer, LinearAttentionCacheLayerMixin):
            layer.batch_select_indices(rows)
