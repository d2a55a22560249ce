"""A prefix tree as the layers of a model want it: who sees whom, worked out once for all layers of a forward pass.

A pass reads the tree that `reading` names. Masks are asked for by the model itself, for every kind of layer that it has
(`tree_attention`); they know the tree, so attention finds it wherever its mask goes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sdpo.tokens.prefix_tree import PrefixTree

MAX_TO_SHORTEST = 2.0  # of rows that are padded into one product
Made = TypeVar("Made")
_READ: ContextVar[TreePlan | None] = ContextVar("prefix tree of this pass", default=None)


class reading:
    """Within, models that read prefix trees read this one. May be entered again, as by a second backward pass."""

    def __init__(self, plan: TreePlan | None) -> None:
        self.plan = plan
        self._tokens: list[Token] = []

    def __enter__(self) -> None:
        self._tokens.append(_READ.set(self.plan))

    def __exit__(self, *_: Any) -> None:
        _READ.reset(self._tokens.pop())


def plan_of_pass() -> TreePlan | None:
    return _READ.get()


def checkpoint_contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
    """For gradient checkpointing: what the backward pass computes again, in another thread, reads the same tree."""
    return nullcontext(), reading(_READ.get())


# Not a dataclass: FSDP2 would copy it at every layer, and what is worked out would be lost.
class TreePlan:
    def __init__(self, tree: PrefixTree) -> None:
        self.tree = tree
        self._rows: dict[tuple[int | None, bool], Rows] = {}
        self._masks: dict[tuple[int | None, int | None], PathMask] = {}
        self._made: dict[Callable[[TreePlan], Any], Any] = {}

    def once(self, make: Callable[[TreePlan], Made]) -> Made:
        """What `make` makes of this tree, for all layers."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    @cached_property
    def on_cpu(self) -> PrefixTree:
        return self.tree.to("cpu")

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor, int, int]:
        """Where runs and paths begin and end, [S + 1] int32 each, and the longest of both."""
        runs, paths = self.tree.run_lengths, self.tree.path_lengths
        ends = (F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32) for lengths in (runs, paths))
        return *ends, int(runs.max()), int(paths.max())

    def rows(self, reach: int | None, by_row: bool = False) -> Rows:
        """Every run behind the last `reach - 1` tokens of its path before it; None: behind all of them. Runs of similar
        length are padded together; `by_row`: rows of similar length."""
        if (reach, by_row) not in self._rows:
            self._rows[reach, by_row] = Rows(_batch_runs(self.on_cpu, reach, by_row), self.tree.tokens.device)
        return self._rows[reach, by_row]

    def mask(self, window: int | None = None, chunk: int | None = None) -> PathMask:
        return self._masks.setdefault((window, chunk), PathMask(self, window, chunk))


@dataclass(frozen=True)
class RowBatch:
    """B rows of k places, padded. The last of a row are its run: q of them, or fewer."""

    places: Tensor  # [B, k] int64, places in the tree; 0 on padding
    real: Tensor  # [B, k] bool, False on padding
    run: Tensor  # [B, q] int64, columns of the run among the k; 0 on padding
    wanted: Tensor  # [B, q] bool, False on padding

    @cached_property
    def queries(self) -> Tensor:
        """[B, q], places in the tree."""
        return self.places.gather(1, self.run)

    def to(self, device: torch.device) -> RowBatch:
        return RowBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


class Rows:
    """All tokens of a tree, each in the run of one row."""

    def __init__(self, batches: list[RowBatch], device: torch.device) -> None:
        places = torch.cat([batch.queries[batch.wanted] for batch in batches])
        found = torch.cat([batch.wanted.flatten() for batch in batches]).nonzero()[:, 0]
        self.batches = [batch.to(device) for batch in batches]
        self.unpadding = torch.empty_like(places).index_copy_(0, places, found).to(device)
        """[T], the place of each token in the flattened runs of the batches."""


def _batch_runs(tree: PrefixTree, reach: int | None, by_row: bool) -> list[RowBatch]:
    runs = tree.run_lengths.tolist()
    rows = list(tree.path_places.split(tree.path_lengths.tolist()))
    if reach is not None:
        rows = [row[-(run + reach - 1) :] for row, run in zip(rows, runs, strict=True)]
    lengths = [len(row) for row in rows] if by_row else runs
    order = sorted(range(len(rows)), key=lambda i: (-lengths[i], -len(rows[i])))
    return [row_batch([rows[i] for i in part], [runs[i] for i in part]) for part in similar(order, lengths)]


def similar(order: list[int], lengths: list[int]) -> list[list[int]]:
    """`order`, from the longest to the shortest, in parts of similar length."""
    parts: list[list[int]] = []
    for i in order:
        if parts and lengths[parts[-1][0]] <= MAX_TO_SHORTEST * lengths[i]:
            parts[-1].append(i)
        else:
            parts.append([i])
    return parts


def row_batch(rows: list[Tensor], lengths: list[int], least: int = 1) -> RowBatch:
    """`lengths`: of the runs at the ends of the rows. `least`: columns there are at least."""
    sees, wanted = torch.tensor([len(row) for row in rows]), torch.tensor(lengths)
    places = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    places = F.pad(places, (0, max(0, least - places.shape[1])))
    columns = torch.arange(int(wanted.max()))
    in_run = columns < wanted[:, None]
    run = torch.where(in_run, (sees - wanted)[:, None] + columns, 0)
    return RowBatch(places, torch.arange(places.shape[1]) < sees[:, None], run, in_run)


class PathMask:
    """What a kind of layer sees: the tokens before a token on its path, of those the last `window` (with itself), or
    those in its own chunk of `chunk` tokens. Stands where a layer's attention mask stands."""

    def __init__(self, plan: TreePlan, window: int | None, chunk: int | None) -> None:
        self.plan, self.window, self.chunk = plan, window, chunk

    @cached_property
    def rows(self) -> Rows:
        return self.plan.rows(self.window or self.chunk)

    @cached_property
    def masks(self) -> list[Tensor]:
        """[B, 1, q, k] bool for each batch of `rows`, True where a query sees a place; padding sees the first."""
        depth = self.plan.tree.depth
        found = []
        for batch in self.rows.batches:
            query, key = depth[batch.queries][:, :, None], depth[batch.places][:, None, :]
            seen = visible(query, key, self.window, self.chunk) & batch.real[:, None, :] & batch.wanted[:, :, None]
            seen[:, :, 0] |= ~batch.wanted
            found.append(seen[:, None])
        return found


def visible(query: Tensor, key: Tensor, window: int | None, chunk: int | None) -> Tensor:
    """Whether a token at depth `query` sees one at depth `key` of its path."""
    seen = key <= query
    if window is not None:
        seen = seen & (key > query - window)
    if chunk is not None:
        seen = seen & (key // chunk == query // chunk)
    return seen


MaskFunction = Callable[[Any, Any, Tensor, Tensor], Tensor]


def kind_of(rule: MaskFunction, size: int | None, device: torch.device | str) -> tuple[int | None, int | None] | None:
    """(window, chunk) of a rule of transformers, which speaks of places in a row; None for one that is neither."""
    near = {step * (size or 3) + offset for step in (0, 1, 2) for offset in (-1, 0, 1, 2)}
    places = torch.tensor(sorted(place for place in near if place >= 0), device=device)
    query, key = places[:, None], places[None, :]
    first = torch.zeros((1, 1), dtype=torch.int64, device=device)
    asked = torch.as_tensor(rule(first, first, query, key)).expand(len(places), len(places))
    kinds = ((size, None), (None, size))
    return next((kind for kind in kinds if torch.equal(asked, visible(query, key, *kind))), None)
