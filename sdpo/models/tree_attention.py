"""Attention over a prefix tree, for Hugging Face models as they are.

transformers lets a model's attention be named in its configuration, and the function that makes its masks. Under our
names, the masks of a pass that reads a tree are `PathMask`s, one for each kind of layer the model has, and attention
follows them. Every other layer works on T tokens without padding. A pass without a tree (padded rows, generation with a
cache) goes to the attention that the model had before.

Scores may be capped (`softcap`) and have a sink (`s_aux`), with a tree or without: transformers' own `sdpa` leaves
both out without a word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sdpo.models.tree_mixers import read_trees_in_mixers
from sdpo.models.tree_plan import PathMask, kind_of, plan_of_pass

BASES = ("sdpa", "flash_attention_2", "eager")
HALF = (torch.bfloat16, torch.float16)  # what flash attention takes
SINK_WIDTH = 8  # numbers that a sink adds to a head: one is used, kernels want multiples of eight


def _attend(
    base: str, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> Any:
    """transformers' attention interface: query [B, heads, T, D] and so on to ([B, T, heads, D], weights or None)."""
    if isinstance(attention_mask, PathMask):
        return _over_a_tree(attention_mask, query, key, value, **options), None
    if plan_of_pass() is not None:
        raise TypeError("attention whose mask does not say what a token sees on its path")
    if base == "eager":
        return sys.modules[type(module).__module__].eager_attention_forward(
            module, query, key, value, attention_mask, **options
        )
    scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
    cap, sink = options.get("softcap"), options.get("s_aux")
    if base == "sdpa" and (cap is not None or sink is not None):
        if attention_mask is None:
            rows, columns = query.shape[2], key.shape[2]
            attention_mask = query.new_ones(rows, columns, dtype=torch.bool).tril(columns - rows)
        found = _product(query, key, value, attention_mask, scale, dropout, cap, sink)
        return found.transpose(1, 2).contiguous(), None
    if base == "sdpa" and attention_mask is not None and not query.is_cuda:
        # transformers would copy keys and values for every head of a group; here the kernel reads them where they are,
        # and where there is one query, once: the heads of a group are then the queries of one head.
        one_query = query.shape[2] == attention_mask.shape[1] == 1
        asked = query.view(*key.shape[:2], -1, query.shape[-1]) if one_query else query
        found = _product(asked, key, value, attention_mask, scale, dropout)
        return found.view(*query.shape[:3], -1).transpose(1, 2).contiguous(), None
    return ALL_ATTENTION_FUNCTIONS[base](module, query, key, value, attention_mask, **options)


def _over_a_tree(
    mask: PathMask,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """[1, T, heads, D]."""
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [T, heads, D]
    plain = softcap is None and s_aux is None and mask.chunk is None and not dropout
    if plain and query.is_cuda and query.dtype in HALF and query.shape[-1] == value.shape[-1]:
        return _varlen(mask, query, key, value, scaling)[None]

    def rows(tensor: Tensor, places: Tensor) -> Tensor:
        found = tensor.flatten(1).index_select(0, places.flatten())
        return found.view(*places.shape, *tensor.shape[1:]).transpose(1, 2)

    found = []
    for batch, seen in zip(mask.rows.batches, mask.masks, strict=True):  # only these products see padding
        row = rows(query, batch.queries), rows(key, batch.places), rows(value, batch.places)
        attended = _product(*row, seen, scaling, dropout, softcap, s_aux)
        found.append(attended.transpose(1, 2).flatten(0, 1).flatten(1))
    return torch.cat(found).index_select(0, mask.rows.unpadding).view(1, query.shape[0], query.shape[1], -1)


def _product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scale: float | None,
    dropout: float,
    cap: float | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """[B, heads, q, D] of padded rows; `mask`: what is seen, or what is added to the scores; `sink`: [heads]."""
    width = value.shape[-1]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if cap is not None:
        if sink is not None:
            raise TypeError("scores with a cap and a sink")
        return _capped(query, key, value, mask, scale, dropout, cap)
    if sink is not None:
        query, key, value, mask = _with_sink(query, key, value, mask, sink / scale)
    if value.shape[-1] < query.shape[-1]:  # multi-head latent attention; fused kernels want one width
        value = F.pad(value, (0, query.shape[-1] - value.shape[-1]))
    grouped = query.shape[1] != key.shape[1]
    found = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return found[..., :width]


def _with_sink(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, sink: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A sink is one more key, whose score with each head's queries is that head's sink and whose value is nothing: so
    fused kernels can have it. One more number of each query and key makes that score and no other."""
    more = sink.to(query.dtype)[None, :, None, None].expand(*query.shape[:3], 1)
    query = F.pad(torch.cat([query, more], dim=-1), (0, SINK_WIDTH - 1))
    key = F.pad(key, (0, SINK_WIDTH, 0, 1))
    last = torch.zeros_like(key)
    last[..., -1, -SINK_WIDTH] = 1
    seen = F.pad(mask, (0, 1), value=True if mask.dtype == torch.bool else 0.0)
    return query, key + last, F.pad(value, (0, SINK_WIDTH, 0, 1)), seen


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, dropout: float, cap: float
) -> Tensor:
    """No fused kernel of torch caps scores: all of them exist at once here, in float32."""
    groups = key.shape[1]
    asked = query.unflatten(1, (groups, -1)).flatten(2, 3)  # the queries of a group's heads, one behind the other
    scores = (asked @ key.transpose(2, 3)).float().unflatten(2, (-1, query.shape[2])) * (scale / cap)
    scores, seen = scores.tanh() * cap, mask[:, :, None] if mask.dim() == 4 else mask
    if mask.dtype == torch.bool:  # not -inf: padding may see nothing
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    else:
        scores = scores + seen
    weights = F.dropout(scores.softmax(-1).to(query.dtype), dropout)
    return (weights.flatten(2, 3) @ value).unflatten(2, (-1, query.shape[2])).flatten(1, 2)


def _varlen(mask: PathMask, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    """[T, heads, D], for half precision on a GPU. Queries stay where they are, keys and values are collected along the
    paths. The kernel aligns a run with the end of its path, and counts a window without the token itself."""
    from torch.nn.attention.varlen import varlen_attn

    places = mask.plan.tree.path_places
    return varlen_attn(
        query.contiguous(),
        key.index_select(0, places),
        value.index_select(0, places),
        *mask.plan.bounds,
        scale=scale,
        window_size=(-1 if mask.window is None else mask.window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _mask(base: str, mask_function: Any, **options: Any) -> Any:
    """transformers' mask interface; `mask_function` says who sees whom, by places in a row."""
    plan = plan_of_pass()
    if plan is None:
        return ALL_MASK_ATTENTION_FUNCTIONS[base](mask_function=mask_function, **options)
    if options.get("use_vmap") or not options.get("allow_is_causal_skip"):
        return None  # it also looks at what the tokens are, or ahead; an attention that uses it is refused
    kind = kind_of(mask_function, options.get("local_size"), options["device"])
    return kind and plan.mask(*kind)


def _register(base: str) -> str:
    name = f"prefix_tree_{base}"
    attention: Callable[..., Any] = partial(_attend, base)
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, partial(_mask, base))
    return name


NAMES = {base: _register(base) for base in BASES}


def read_trees(model: PreTrainedModel) -> str | None:
    """Makes the model read the tree of a pass (`tree_plan.reading`), which `trial.check_scores` tries. Returns what
    stands against it, or None: such a model gets padded rows and computes every prompt for every response."""
    config = model.config
    code = {sys.modules.get(type(part).__module__) for part in model.modules()}
    code = {module for module in code if hasattr(module, "ALL_ATTENTION_FUNCTIONS")}
    if not code:
        return f"{type(model).__name__} does not use transformers' attention interface"
    name = NAMES.get(config._attn_implementation, config._attn_implementation)
    if name not in NAMES.values() or (name == NAMES["eager"] and not all(map(_has_eager, code))):
        return f"attn_implementation={config._attn_implementation}"
    if getattr(config.get_text_config(), "attn_temperature_tuning", False):  # of Llama 4, whatever `position_ids` say
        return "scores that are scaled by the place in the row"
    config._attn_implementation = name
    read_trees_in_mixers(model)
    return None


def _has_eager(code: Any) -> bool:
    return hasattr(code, "eager_attention_forward")
