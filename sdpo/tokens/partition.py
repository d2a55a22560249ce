"""Which rows run together: over ranks, then over micro-batches.

The loss does not depend on the outcome (its denominators are those of the whole optimizer step); time and memory do.
Everything here is a pure function of the rows, so every rank can compute the whole plan and take its own share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sdpo.errors import ConfigError, problem
from sdpo.packed import TokenIds
from sdpo.records import Span, TrainRow
from sdpo.tokens.prefix_tree import Tokens, TreeSize, sort_key

UNEVEN = 1.1  # the fullest rank may have this many times its share before a group is taken apart


@dataclass(frozen=True)
class MicroBatchRows:
    """The rows of one forward. All of them have something to distill, or none has.

    A `dummy` repeats a row of another rank: a rank that has run out of rows must still join the collectives of the
    forward and backward. Its loss is multiplied by zero and its metrics are thrown away.
    """

    rows: list[TrainRow]
    dummy: bool = False

    @property
    def has_teacher(self) -> bool:
        return bool(self.rows[0].distillation)


def teacher_sequences(rows: Sequence[TrainRow]) -> tuple[list[TokenIds], list[list[Span]]]:
    """What the teacher reads, one sequence for each distilled span: its context, then the span; and where that is."""
    sequences, spans = [], []
    for part, tokens in ((part, row.token_ids[slice(*part.span)]) for row in rows for part in row.distillation):
        sequence = TokenIds(part.context_ids)
        sequence.extend(tokens)
        sequences.append(sequence)
        spans.append([(len(part.context_ids), len(sequence))])
    return sequences, spans


class _Forward:
    """Rows of one forward as they come together, and how much student and teacher read of them. What is counted once is
    not counted again when the rows join others: a plan takes time in proportion to its rows."""

    def __init__(self, rows: Sequence[TrainRow], padded: bool = False) -> None:
        self.rows = list(rows)
        sides: tuple[Sequence[Tokens], ...] = [row.token_ids for row in rows], teacher_sequences(rows)[0]
        self._sides = [(_PaddedSize if padded else TreeSize)() for _ in sides]
        for size, sequences in zip(self._sides, sides, strict=True):
            size.add(map(sort_key, sequences))

    def join(self, other: _Forward) -> _Forward:
        self.rows += other.rows
        for size, more in zip(self._sides, other._sides, strict=True):
            size.add(more.keys)
        return self

    @property
    def tokens(self) -> tuple[int, int]:
        student, teacher = self._sides
        return student.tokens, teacher.tokens


class _PaddedSize:
    """`TreeSize` for rows that are read whole."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self._longest = 0

    def add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.keys.append(key)
            self._longest = max(self._longest, len(key) // len(sort_key([0])))

    @property
    def tokens(self) -> int:
        return len(self.keys) * self._longest


def side_tokens(rows: Sequence[TrainRow], padded: bool = False) -> tuple[int, int]:
    """Tokens that student and teacher read in one forward of these rows; 0 for a teacher without anything to score.

    What sequences begin with alike is read once (`prefix_tree`). When `padded`, each is read whole and filled up to the
    longest.
    """
    return _Forward(rows, padded).tokens


def together(rows: Sequence[TrainRow], padded: bool = False) -> list[list[TrainRow]]:
    """Rows that are worth keeping in one forward: those of one prompt, in the given order. `padded`: each alone."""
    if padded:
        return [[row] for row in rows]
    groups: dict[bytes, list[TrainRow]] = {}
    for row in rows:
        groups.setdefault(TokenIds.of(row.token_ids[: row.spans[0][0]]).tobytes(), []).append(row)
    return list(groups.values())


def split_over_ranks(rows: Sequence[TrainRow], world: int, padded: bool = False) -> list[list[TrainRow]]:
    """`world` lists with nearly equal token sums; some are empty when there are fewer rows than ranks.

    Rows of one prompt stay together; where that leaves a rank with too much, the largest group is halved.
    """
    if world == 1:
        return [list(rows)]
    units = [(sum(side_tokens(unit, padded)), unit) for unit in together(rows, padded)]
    while True:
        shares = [[units[i] for i in share] for share in _balanced([cost for cost, _ in units], world)]
        costs = [sum(cost for cost, _ in share) for share in shares]
        divisible = [i for i, (_, unit) in enumerate(units) if len(unit) > 1]
        if not divisible or max(costs) * world <= UNEVEN * sum(costs):
            return [[row for _, unit in share for row in unit] for share in shares]
        _, largest = units.pop(max(divisible, key=lambda i: units[i][0]))
        units += [(sum(side_tokens(half, padded)), half) for half in _halves(largest)]


def _balanced(costs: list[int], world: int) -> list[list[int]]:
    """Indices of the costs, for each rank."""
    if len(costs) <= world:
        return [[rank] if rank < len(costs) else [] for rank in range(world)]
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions  # heavy: imports verl's data protocol

    return get_seqlen_balanced_partitions(costs, world, equal_size=False)


def _halves(rows: list[TrainRow]) -> list[list[TrainRow]]:
    middle = len(rows) // 2
    return [rows[:middle], rows[middle:]]


def split_micro_batches(
    rows: Sequence[TrainRow], max_tokens: int | None = None, max_rows: int | None = None, padded: bool = False
) -> list[list[TrainRow]]:
    """Rows cut into micro-batches of at most `max_rows` rows and `max_tokens` tokens on each side (`side_tokens`).

    Rows of one prompt share a micro-batch unless they are too many for one. The largest come first. A row that is over
    the token budget alone is run alone: it is never dropped.
    """
    for name, limit in (("max_tokens", max_tokens), ("max_rows", max_rows)):
        if limit is not None and limit < 1:
            raise ConfigError(problem(name, limit, "a number >= 1, or None for no limit"))

    def fits(part: _Forward) -> bool:
        if max_rows is not None and len(part.rows) > max_rows:
            return False
        return max_tokens is None or max(part.tokens) <= max_tokens

    parts: list[list[TrainRow]] = []
    units = [_Forward(unit, padded) for unit in together(rows, padded)]
    last: _Forward | None = None  # the micro-batch that may get more
    for unit in sorted(units, key=lambda unit: max(unit.tokens), reverse=True):
        pieces = [unit] if fits(unit) else [_Forward([row], padded) for row in unit.rows]
        for position, piece in enumerate(pieces):
            starts_anew = position == 0 and len(pieces) > 1
            own = list(piece.rows)
            if last is not None and not starts_anew and fits(last.join(piece)):
                parts[-1] += own
            else:
                last = piece
                parts.append(own)
    return parts


def plan_micro_batches(
    rows: Sequence[TrainRow],
    world: int = 1,
    max_tokens: int | None = None,
    max_rows: int | None = None,
    padded: bool = False,
) -> list[list[MicroBatchRows]]:
    """The forwards of one optimizer step: `plan[rank][i]`. `padded`: for a model that cannot read prefix trees.

    Every rank gets the same number of micro-batches, and the i-th of all ranks agrees on whether there is a teacher
    forward, so that collectives pair up. Rows with something to distill come first; they never share a micro-batch with
    others, so no teacher forward is spent on the latter.
    """
    plan: list[list[MicroBatchRows]] = [[] for _ in range(world)]
    with_teacher = [row for row in rows if row.distillation]
    without_teacher = [row for row in rows if not row.distillation]
    for subset in (with_teacher, without_teacher):
        if not subset:
            continue
        ranks = split_over_ranks(subset, world, padded)
        shares = [split_micro_batches(share, max_tokens, max_rows, padded) for share in ranks]
        count = max(map(len, shares))
        for rank, parts in enumerate(shares):
            parts = _cut_to(parts, count)
            plan[rank] += [MicroBatchRows(part) for part in parts]
            if len(parts) < count:
                shortest = min(subset, key=lambda row: max(side_tokens([row])))
                plan[rank] += [MicroBatchRows([shortest], dummy=True)] * (count - len(parts))
    return plan


def _cut_to(parts: list[list[TrainRow]], count: int) -> list[list[TrainRow]]:
    """Halve the fullest micro-batches until there are `count`, or only single rows are left: cheaper than fillers."""
    parts = list(parts)
    while 0 < len(parts) < count:
        fullest = max(range(len(parts)), key=lambda i: len(parts[i]))
        part = parts[fullest]
        if len(part) == 1:
            break
        parts[fullest : fullest + 1] = _halves(part)
    return parts
