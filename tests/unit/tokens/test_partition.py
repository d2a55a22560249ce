from __future__ import annotations

import random

import pytest

from sdpo.errors import ConfigError
from sdpo.records import TrainRow
from sdpo.tokens.partition import (
    MicroBatchRows,
    plan_micro_batches,
    side_tokens,
    split_micro_batches,
    split_over_ranks,
    teacher_sequences,
)
from sdpo.tokens.prefix_tree import sort_key


def row(index: int, prompt: int, response: int, teacher: int | None = None) -> TrainRow:
    """Rows of one prompt length share their prompt and nothing else."""
    teacher_ids = None if teacher is None else [1] * teacher
    return TrainRow.single_turn("p", index, [1] * (prompt - 1) + [3], [100 + index] * response, teacher_ids)


ROWS = [row(i, 3 + i % 5, 1 + (7 * i) % 11, 4 + i % 3 if i % 4 else None) for i in range(23)]
GROUPS = [TrainRow.single_turn(f"p{g}", i, [g] * 10, [100 + i] * 5, [50 + g] * 20) for g in range(4) for i in range(3)]


def indices(parts: list[list[TrainRow]]) -> list[int]:
    return sorted(r.sample_index for part in parts for r in part)


@pytest.mark.parametrize("padded", [False, True])
def test_micro_batches_hold_every_row_once_within_the_budget_of_each_side(padded: bool) -> None:
    parts = split_micro_batches(ROWS, max_tokens=40, padded=padded)
    assert indices(parts) == list(range(23))
    assert all(max(side_tokens(part, padded)) <= 40 for part in parts)


def test_a_shared_prompt_counts_once_and_only_once_it_is_shared() -> None:
    assert side_tokens(GROUPS[:3]) == (10 + 3 * 5, 20 + 3 * 5)
    assert side_tokens(GROUPS[:3], padded=True) == (3 * 15, 3 * 25)
    assert side_tokens(GROUPS[2:4]) == (2 * 15, 2 * 25)


def test_a_group_stays_in_one_micro_batch_where_it_fits() -> None:
    parts = split_micro_batches(GROUPS, max_tokens=2 * 35 + 20)
    assert [sorted({r.prompt_uid for r in part}) for part in parts] == [["p0", "p1"], ["p2", "p3"]]


def test_a_group_over_the_budget_is_split() -> None:
    parts = split_micro_batches(GROUPS, max_tokens=30)
    assert [[(r.prompt_uid, r.sample_index) for r in part] for part in parts[:3]] == [
        [("p0", 0), ("p0", 1)],
        [("p0", 2)],
        [("p1", 0), ("p1", 1)],
    ]


@pytest.mark.parametrize(("padded", "one", "two"), [(True, 20, 19), (False, 13, 12)])
def test_budget_counts_the_longer_of_student_and_teacher(padded: bool, one: int, two: int) -> None:
    rows = [row(0, 2, 3, teacher=7), row(1, 2, 3, teacher=7)]
    assert len(split_micro_batches(rows, max_tokens=one, padded=padded)) == 1
    assert len(split_micro_batches(rows, max_tokens=two, padded=padded)) == 2


def test_a_row_over_the_budget_runs_alone_and_is_not_dropped() -> None:
    parts = split_micro_batches([row(0, 50, 50), row(1, 1, 1), row(2, 1, 1)], max_tokens=10)
    assert [[r.sample_index for r in part] for part in parts] == [[0], [1, 2]]
    parts = split_micro_batches([row(i, 50, 50) for i in range(2)], max_tokens=10)  # of one group
    assert [[r.sample_index for r in part] for part in parts] == [[0], [1]]


def test_fixed_row_count_limits_rows() -> None:
    parts = split_micro_batches(ROWS, max_rows=8)
    assert indices(parts) == list(range(23)) and max(map(len, parts)) <= 8
    assert [len(p) for p in split_micro_batches(ROWS, max_rows=8, padded=True)] == [8, 8, 7]


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        split_micro_batches(ROWS, max_tokens=0)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_all_rows_with_nearly_equal_tokens(world: int) -> None:
    shares = split_over_ranks(ROWS, world)
    assert len(shares) == world and indices(shares) == list(range(23))
    sums = [sum(side_tokens(share)) for share in shares]
    assert max(sums) * world <= 1.25 * sum(sums)


def test_groups_are_not_taken_apart_for_ranks_that_are_even_anyway() -> None:
    shares = split_over_ranks(GROUPS, 2)
    assert [len({r.prompt_uid for r in share}) for share in shares] == [2, 2]


def test_one_group_is_spread_over_the_ranks() -> None:
    assert [len(share) for share in split_over_ranks(GROUPS[:3], 2)] in ([1, 2], [2, 1])


def test_fewer_rows_than_ranks_leaves_ranks_empty() -> None:
    assert [len(share) for share in split_over_ranks(ROWS[:2], 4)] == [1, 1, 0, 0]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_plan_pairs_up_the_collectives_of_all_ranks(world: int) -> None:
    plan = plan_micro_batches(ROWS, world, max_tokens=40)
    kinds = [[micro_batch.has_teacher for micro_batch in micro_batches] for micro_batches in plan]
    assert all(k == kinds[0] for k in kinds)
    real = [micro_batch.rows for micro_batches in plan for micro_batch in micro_batches if not micro_batch.dummy]
    assert indices(real) == list(range(23))


def test_no_micro_batch_mixes_rows_with_and_without_a_teacher() -> None:
    for micro_batch in plan_micro_batches(ROWS, 1)[0]:
        assert len({bool(r.distillation) for r in micro_batch.rows}) == 1


def test_a_rank_without_rows_gets_fillers_of_the_shortest_row() -> None:
    plan = plan_micro_batches([row(0, 9, 9), row(1, 2, 2)], world=3)
    assert plan[2] == [MicroBatchRows([row(1, 2, 2)], dummy=True)]
    assert not plan[0][0].dummy and not plan[1][0].dummy


def test_a_rank_with_fewer_micro_batches_halves_its_own_before_it_takes_dummies() -> None:
    rows = [row(0, 60, 40), *(row(i, 6, 4) for i in range(1, 11))]
    plan = plan_micro_batches(rows, world=2, max_rows=4)
    assert [len(rank) for rank in plan] == [3, 3]
    assert sum(micro_batch.dummy for rank in plan for micro_batch in rank) == 2  # one row cannot be halved


def test_the_plan_is_the_same_on_every_rank() -> None:
    assert plan_micro_batches(ROWS, 2, max_tokens=30) == plan_micro_batches(list(ROWS), 2, max_tokens=30)


def test_no_rows_is_an_empty_plan() -> None:
    assert plan_micro_batches([], world=2) == [[], []]


def _as_defined(rows: list[TrainRow], max_tokens: int, max_rows: int | None, padded: bool) -> list[list[TrainRow]]:
    """Micro-batches, each counted anew with every row that might join it."""

    def size(part: list[TrainRow]) -> int:
        sides = [[*map(tuple, side)] for side in ([row.token_ids for row in part], teacher_sequences(part)[0])]
        if padded:
            return max(len(side) * max(map(len, side), default=0) for side in sides)
        return max(len({ids[:end] for ids in side for end in range(1, len(ids) + 1)}) for side in sides)

    def fits(part: list[TrainRow]) -> bool:
        return len(part) <= (max_rows or len(part)) and size(part) <= max_tokens

    units: dict[tuple[int, ...], list[TrainRow]] = {}
    for number, one in enumerate(rows):
        units.setdefault((number,) if padded else tuple(one.token_ids[: one.spans[0][0]]), []).append(one)
    parts: list[list[TrainRow]] = []
    for unit in sorted(units.values(), key=size, reverse=True):
        pieces = [unit] if fits(unit) else [[one] for one in unit]
        for position, piece in enumerate(pieces):
            if parts and (position or len(pieces) == 1) and fits(parts[-1] + piece):
                parts[-1] = parts[-1] + piece
            else:
                parts.append(piece)
    return parts


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_counted_step_by_step_is_what_counting_anew_gives(seed: int, padded: bool) -> None:
    rng = random.Random(seed)
    prompts = [[rng.randrange(1, 3) for _ in range(rng.randrange(1, 6))] for _ in range(6)]
    rows = [
        TrainRow.single_turn(
            f"p{number}", 0, rng.choice(prompts), [rng.randrange(3) for _ in range(rng.randrange(1, 8))],
            [*rng.choice(prompts), *rng.choice(prompts)],
        )
        for number in range(24)
    ]  # fmt: skip
    limits = rng.randrange(8, 60), rng.choice([None, 2, 5])
    found = split_micro_batches(rows, *limits, padded)
    wanted = _as_defined(rows, *limits, padded)
    assert [[id(one) for one in part] for part in found] == [[id(one) for one in part] for part in wanted]


def test_a_plan_counts_every_row_a_few_times_however_many_there_are(monkeypatch) -> None:
    from sdpo.tokens import partition

    def counted(groups: int) -> int:
        seen = []
        monkeypatch.setattr(partition, "sort_key", lambda ids: seen.append(1) or sort_key(ids))
        rows = [
            TrainRow.single_turn(f"p{g}", i, [g, 1, 2], [i, 5, g], [9, g, i]) for g in range(groups) for i in range(8)
        ]
        partition.plan_micro_batches(rows, 1, max_tokens=200)
        return len(seen) / len(rows)

    assert counted(8) == counted(64) <= 4  # both sides
