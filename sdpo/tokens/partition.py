"""Which rows run together: over ranks, then over micro-batches. No torch.

The loss does not depend on the outcome (its denominators are those of the whole optimizer step); time and memory do.
Everything here is a pure function of the rows, so every rank can compute the whole plan and take its own share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sdpo.errors import ConfigError, problem
from sdpo.records import TrainRow


@dataclass(frozen=True)
class Chunk:
    """The rows of one forward. All of them have a teacher prompt, or none has.

    A `filler` chunk repeats a row of another rank: a rank that has run out of rows must still join the collectives of
    the forward and backward. Its loss is multiplied by zero and its metrics are thrown away.
    """

    rows: list[TrainRow]
    filler: bool = False

    @property
    def has_teacher(self) -> bool:
        return self.rows[0].teacher_prompt_ids is not None


def student_length(row: TrainRow) -> int:
    """Tokens of prompt + response."""
    return len(row.prompt_ids) + len(row.response_ids)


def teacher_length(row: TrainRow) -> int:
    """Tokens of teacher prompt + response; 0 when the row has no teacher prompt."""
    return 0 if row.teacher_prompt_ids is None else len(row.teacher_prompt_ids) + len(row.response_ids)


def row_length(row: TrainRow) -> int:
    """Tokens of the longer of the two sides: what a row costs in a micro-batch's budget."""
    return max(student_length(row), teacher_length(row))


def padded_tokens(rows: Sequence[TrainRow]) -> int:
    """Size in tokens of the larger padded rectangle, student's or teacher's."""
    if not rows:
        return 0
    return len(rows) * max(max(map(student_length, rows)), max(map(teacher_length, rows)))


def split_over_ranks(rows: Sequence[TrainRow], world: int) -> list[list[TrainRow]]:
    """`world` lists with nearly equal token sums; some are empty when there are fewer rows than ranks."""
    if world == 1:
        return [list(rows)]
    if len(rows) <= world:
        return [[rows[rank]] if rank < len(rows) else [] for rank in range(world)]
    from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions  # heavy: imports verl's data protocol

    lengths = [student_length(row) + teacher_length(row) for row in rows]
    return [[rows[i] for i in part] for part in get_seqlen_balanced_partitions(lengths, world, equal_size=False)]


def split_micro_batches(
    rows: Sequence[TrainRow], max_tokens: int | None = None, max_rows: int | None = None
) -> list[list[TrainRow]]:
    """Rows sorted by length (longest first, ties in the given order) and cut into micro-batches.

    A micro-batch holds at most `max_rows` rows and at most `max_tokens` tokens, padding included, on each side. A row
    that is over the token budget alone is run alone: it is never dropped.
    """
    for name, limit in (("max_tokens", max_tokens), ("max_rows", max_rows)):
        if limit is not None and limit < 1:
            raise ConfigError(problem(name, limit, "a number >= 1, or None for no limit"))
    parts: list[list[TrainRow]] = []
    for row in sorted(rows, key=row_length, reverse=True):
        if parts and _fits(parts[-1], row, max_tokens, max_rows):
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def _fits(part: list[TrainRow], row: TrainRow, max_tokens: int | None, max_rows: int | None) -> bool:
    if max_rows is not None and len(part) >= max_rows:
        return False
    return max_tokens is None or padded_tokens([*part, row]) <= max_tokens


def plan_micro_batches(
    rows: Sequence[TrainRow], world: int = 1, max_tokens: int | None = None, max_rows: int | None = None
) -> list[list[Chunk]]:
    """The forwards of one optimizer step: `plan[rank][i]`.

    Every rank gets the same number of chunks, and the i-th chunk of all ranks agrees on whether there is a teacher
    forward, so that collectives pair up. Rows with a teacher prompt come first; they never share a chunk with rows
    without one, so no teacher forward is spent on the latter.
    """
    plan: list[list[Chunk]] = [[] for _ in range(world)]
    with_teacher = [row for row in rows if row.teacher_prompt_ids is not None]
    without_teacher = [row for row in rows if row.teacher_prompt_ids is None]
    for subset in (with_teacher, without_teacher):
        if not subset:
            continue
        shares = [split_micro_batches(share, max_tokens, max_rows) for share in split_over_ranks(subset, world)]
        count = max(map(len, shares))
        shortest = min(subset, key=row_length)
        for rank, parts in enumerate(shares):
            parts = _cut_to(parts, count)
            plan[rank] += [Chunk(part) for part in parts]
            plan[rank] += [Chunk([shortest], filler=True)] * (count - len(parts))
    return plan


def _cut_to(parts: list[list[TrainRow]], count: int) -> list[list[TrainRow]]:
    """Halve the fullest micro-batches until there are `count`, or only single rows are left: cheaper than fillers."""
    parts = list(parts)
    while 0 < len(parts) < count:
        fullest = max(range(len(parts)), key=lambda i: len(parts[i]))
        part = parts[fullest]
        if len(part) == 1:
            break
        middle = len(part) // 2
        parts[fullest : fullest + 1] = [part[:middle], part[middle:]]
    return parts
