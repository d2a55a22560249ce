"""Attention over a prefix tree, for Hugging Face models as they are.

transformers lets a model's attention be named in its configuration and hands unknown keyword arguments of the forward
pass down to it. So the tree travels as `prefix_tree=...` beside the input ids, and every other layer works on T tokens
without padding. A call without a tree (generation with a cache) goes to the attention that the model had before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sdpo.tokens.prefix_tree import PrefixTree

BASES = ("sdpa", "flash_attention_2")
HALF = (torch.bfloat16, torch.float16)  # what flash attention takes
MAX_TO_SHORTEST = 2.0  # of runs that are padded into one product


@dataclass(frozen=True)
class TreePlan:
    """A tree as the attention kernels want it, worked out once for all layers of a forward pass."""

    tree: PrefixTree

    @cached_property
    def batches(self) -> list[RunBatch]:
        device = self.tree.tokens.device
        return [batch.to(device) for batch in _batch_runs(self.tree.to("cpu"))]

    @cached_property
    def unpadding(self) -> Tensor:
        """[T], the place of each token in the flattened batches."""
        places = torch.cat([batch.queries.flatten() for batch in self.batches])
        real = torch.cat([batch.real.flatten() for batch in self.batches])
        return torch.empty_like(self.tree.tokens).index_copy_(0, places[real], real.nonzero()[:, 0])

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor, int, int]:
        """Where runs and paths begin and end, [S + 1] int32 each, and the longest of both."""
        runs, paths = self.tree.run_lengths, self.tree.path_lengths
        ends = (F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32) for lengths in (runs, paths))
        return *ends, int(runs.max()), int(paths.max())


@dataclass(frozen=True)
class RunBatch:
    """Runs of similar length, padded: B runs of q queries that see k places."""

    queries: Tensor  # [B, q] int64, places in the tree; 0 on padding
    real: Tensor  # [B, q] bool, False on padding
    keys: Tensor  # [B, k] int64
    mask: Tensor  # [B, 1, q, k] bool, True where a query sees a place; a padded query sees the first

    def to(self, device: torch.device) -> RunBatch:
        return RunBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def _batch_runs(tree: PrefixTree) -> list[RunBatch]:
    """Runs sorted by length, cut where the longest would be over `MAX_TO_SHORTEST` times the shortest."""
    starts = (tree.run_lengths.cumsum(0) - tree.run_lengths).tolist()
    paths = tree.path_places.split(tree.path_lengths.tolist())
    lengths = tree.run_lengths.tolist()
    parts: list[list[int]] = []
    for run in sorted(range(len(lengths)), key=lambda i: (-lengths[i], -len(paths[i]))):
        if parts and lengths[parts[-1][0]] <= MAX_TO_SHORTEST * lengths[run]:
            parts[-1].append(run)
        else:
            parts.append([run])
    return [_run_batch([(starts[i], lengths[i], paths[i]) for i in part]) for part in parts]


def _run_batch(runs: list[tuple[int, int, Tensor]]) -> RunBatch:
    lengths = torch.tensor([length for _, length, _ in runs])
    sees = torch.tensor([len(path) for _, _, path in runs])
    columns = torch.arange(int(lengths.max()))
    real = columns < lengths[:, None]
    queries = (torch.tensor([start for start, _, _ in runs])[:, None] + columns) * real
    keys = nn.utils.rnn.pad_sequence([path for _, _, path in runs], batch_first=True)
    last_seen = (sees - lengths)[:, None] + columns  # of each query, counted along its path
    last_seen = torch.where(real, last_seen, 0)
    mask = torch.arange(keys.shape[1]) <= last_seen[:, :, None]
    return RunBatch(queries, real, keys, mask[:, None])


def _attend(
    base: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> Any:
    """transformers' attention interface: query [B, heads, T, D] and so on to ([B, T, heads, D], weights or None)."""
    plan: TreePlan | None = options.pop("prefix_tree", None)
    scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
    if plan is None and base == "sdpa" and attention_mask is not None and not query.is_cuda:
        # transformers would copy keys and values for every head of a group; here the kernel reads them where they are,
        # and where there is one query, once: the heads of a group are then the queries of one head.
        one_query = query.shape[2] == attention_mask.shape[1] == 1
        asked = query.view(*key.shape[:2], -1, query.shape[-1]) if one_query else query
        found = F.scaled_dot_product_attention(
            asked, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scale, enable_gqa=True
        )
        return found.view(query.shape).transpose(1, 2).contiguous(), None
    if plan is None:
        return ALL_ATTENTION_FUNCTIONS[base](module, query, key, value, attention_mask, **options)
    kernel = _varlen if query.is_cuda and query.dtype in HALF and not dropout else _padded
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [T, heads, D]
    return kernel(plan, query, key, value, scale, dropout)[None], None


def _padded(plan: TreePlan, query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """[T, heads, D]. Only these products see padding; it is thrown away."""

    def rows(tensor: Tensor, places: Tensor) -> Tensor:
        found = tensor.flatten(1).index_select(0, places.flatten())
        return found.view(*places.shape, *tensor.shape[1:]).transpose(1, 2)

    found = []
    for batch in plan.batches:
        attended = F.scaled_dot_product_attention(
            rows(query, batch.queries),
            rows(key, batch.keys),
            rows(value, batch.keys),
            attn_mask=batch.mask,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
    return torch.cat(found).index_select(0, plan.unpadding).view(query.shape[0], query.shape[1], -1)


def _varlen(plan: TreePlan, query: Tensor, key: Tensor, value: Tensor, scale: float | None, dropout: float) -> Tensor:
    """[T, heads, D], for half precision on a GPU. Queries stay where they are, keys and values are collected along the
    paths. The kernel aligns a run with the end of its path."""
    from torch.nn.attention.varlen import varlen_attn

    places = plan.tree.path_places
    return varlen_attn(
        query.contiguous(),
        key.index_select(0, places),
        value.index_select(0, places),
        *plan.bounds,
        scale=scale,
        window_size=(-1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _register(base: str) -> str:
    name = f"prefix_tree_{base}"
    attention: Callable[..., Any] = partial(_attend, base)
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
    return name


NAMES = {base: _register(base) for base in BASES}


def prefix_sharing_unsupported(model: PreTrainedModel) -> str | None:
    """None when the model's attention can read a prefix tree exactly; else what stands against it. Such a model gets
    padded rows and computes every prompt for every response."""
    config = model.config
    if not model._supports_attention_backend:
        return f"{type(model).__name__} does not use transformers' attention interface"
    if config._attn_implementation not in (*NAMES, *NAMES.values()):
        return f"attn_implementation={config._attn_implementation}"
    if config is not config.get_text_config() or config.is_encoder_decoder:
        return "not a plain language model"
    if model._is_stateful:
        return "layers with a state of their own"
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) is not None and not hasattr(config, "layer_types")
    if kinds != {"full_attention"} or windowed:
        return "layers that do not see the whole sequence"
    special = ("attn_logit_softcapping", "kv_lora_rank", "alibi", "attention_chunk_size")
    found = [name for name in special if getattr(config, name, None)]
    return f"attention with {found[0]}" if found else None


def read_trees(model: PreTrainedModel) -> None:
    """Makes the model accept `prefix_tree=TreePlan`. Ask `prefix_sharing_unsupported` first."""
    config = model.config
    config._attn_implementation = NAMES.get(config._attn_implementation, config._attn_implementation)
