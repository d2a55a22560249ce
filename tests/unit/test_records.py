"""Numbers in records are packed, and look like the lists they were given as."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.packed import LogProbs, TokenIds
from sdpo.records import Distillation, Grade, GradeStatus, Reprompt, Sample, TrainRow

ids = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(numbers=ids, other=ids, cut=st.slices(20))
def test_packed_ids_behave_as_a_list(numbers: list[int], other: list[int], cut: slice) -> None:
    packed = TokenIds(numbers)
    assert packed == numbers and numbers == packed and packed == tuple(numbers)
    same = numbers == other
    assert (packed == other) == (packed == TokenIds(other)) == same and (packed != other) != same
    assert packed[cut] == numbers[cut] and type(packed[cut]) is TokenIds
    assert packed + other == numbers + other and other + packed == other + numbers
    assert [*packed] == numbers and bool(packed) == bool(numbers) and repr(packed) == repr(numbers)
    beside: list[pickle.PickleBuffer] = []  # as Ray sends memory
    body = pickle.dumps(packed, 5, buffer_callback=beside.append)
    sent = pickle.loads(body, buffers=beside), *(pickle.loads(pickle.dumps(packed, form)) for form in (2, 4, 5))
    for again in (*sent, copy.deepcopy(packed), TokenIds.of(packed)):
        assert type(again) is TokenIds and again == numbers
    assert np.asarray(packed).dtype == np.int32


@given(st.lists(st.floats(-50, 0), max_size=20))
def test_log_probs_lose_no_digit(numbers: list[float]) -> None:
    assert pickle.loads(pickle.dumps(LogProbs(numbers))) == numbers


def test_json_of_a_sample_is_that_of_lists() -> None:
    grade = Grade(GradeStatus.OK, 1.0)
    sample = Sample("p", 0, [1, 2], [3, 4], "x", "stop", 0, [-0.1, -2.5], grade, [], [[1, 2, 3, 4]])
    found = json.loads(json.dumps(asdict(sample), default=list))
    assert (found["prompt_ids"], found["response_ids"]) == ([1, 2], [3, 4])
    assert (found["sampler_logprobs"], found["sequences"]) == ([-0.1, -2.5], [[1, 2, 3, 4]])


@pytest.mark.parametrize("length", [1024, 4096])
def test_a_row_travels_in_a_tenth_of_a_kibibyte_for_four_tokens(length: int) -> None:
    """So 1,024 rows of 4,096 tokens need less than 100 MiB."""
    numbers = list(range(length))
    row = TrainRow.single_turn("p", 0, [1, 2, 3], numbers, numbers, sampler_logprobs=[-1.0] * length)
    assert len(pickle.dumps(row)) < 100 * 1024 * length / 4096


def test_records_that_share_ids_share_their_memory() -> None:
    shared = TokenIds([1, 2, 3])
    rows = [Distillation((1, 2), Reprompt(shared, "", None, False).prompt_ids) for _ in range(3)]
    assert all(row.context_ids is shared for row in rows)
