from __future__ import annotations

import pytest

from sdpo.records import Distillation, TrainRow
from sdpo.tokens.packing import PackedSide, pack_micro_batch, pack_responses, pack_side
from sdpo.tokens.partition import MicroBatchRows

ROWS = [
    TrainRow.single_turn("p", 0, [5, 6], [7, 8, 2], [5, 9, 9, 6]),
    TrainRow.single_turn("p", 1, [5, 6, 4], [3], [5]),
]


def test_rows_of_one_prompt_are_its_tokens_once_and_then_the_responses() -> None:
    side = pack_responses([[5, 6], [5, 6]], [[7, 8, 2], [3]])
    assert side.input_ids.tolist() == [[5, 6, 3, 7, 8, 2]] and side.attention_mask is None
    assert side.position_ids.tolist() == [[0, 1, 2, 2, 3, 4]]
    assert side.selected.tolist() == [1, 3, 4, 1]


def test_padded_rows_are_prompt_plus_response() -> None:
    side = pack_responses([[5, 6], [5, 6, 4]], [[7, 8, 2], [3]], padded=True)
    assert side.input_ids.tolist() == [[5, 6, 7, 8, 2], [5, 6, 4, 3, 0]]
    assert side.attention_mask is not None and side.tree is None
    assert side.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert side.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]


@pytest.mark.parametrize("padded", [False, True])
def test_the_selected_states_predict_the_response_tokens(padded: bool) -> None:
    """Every place is followed by one token only, so a shift by one selects another token."""
    prompts, responses = [[10], [20, 21]], [[11, 12, 13], [22, 23]]
    side = pack_responses(prompts, responses, padded)
    assert (side.input_ids.flatten()[side.selected] + 1).tolist() == [11, 12, 13, 22, 23]


@pytest.mark.parametrize("padded", [False, True])
def test_both_sides_read_the_response_ids_verbatim(padded: bool) -> None:
    micro = pack_micro_batch(MicroBatchRows(ROWS), padded)
    for side, prompts in (
        (micro.student, [[5, 6], [5, 6, 4]]),
        (micro.teacher, [[5, 9, 9, 6], [5]]),
    ):
        assert [prompt + row.policy_ids for prompt, row in zip(prompts, ROWS, strict=True)] == _sequences(side)


def _sequences(side: PackedSide) -> list[list[int]]:
    if side.tree is None:
        return [ids[mask.bool()].tolist() for ids, mask in zip(side.input_ids, side.attention_mask, strict=True)]
    paths = side.tree.path_places.split(side.tree.path_lengths.tolist())
    found = [side.tree.tokens[path].tolist() for path in paths]
    return sorted(found, key=lambda ids: [row.token_ids[-1] for row in ROWS].index(ids[-1]))


def test_student_and_teacher_select_the_same_tokens_in_the_same_order() -> None:
    micro = pack_micro_batch(MicroBatchRows(ROWS))
    assert micro.teacher is not None
    student = micro.student.input_ids.flatten()[micro.student.selected]
    teacher = micro.teacher.input_ids.flatten()[micro.teacher.selected]
    assert student.tolist() == [6, 7, 8, 4] and teacher.tolist() == [6, 7, 8, 5]


def test_rows_without_teacher_prompt_get_no_teacher_side() -> None:
    assert pack_micro_batch(MicroBatchRows([TrainRow.single_turn("p", 0, [1], [2])])).teacher is None


def test_masks_come_from_lengths_so_the_end_id_is_trained_when_it_is_also_the_pad_id() -> None:
    side = pack_responses([[1]] * 3, [[5, 6, 0], [5, 0], [5, 6, 8]], padded=True)
    assert side.attention_mask is not None
    assert side.attention_mask[:, 1:].tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="without prompt tokens"):
        pack_responses([[]], [[1]])


HINTS = (Distillation((5, 7), [1, 3, 6]), Distillation((2, 3), [2]))
TURNS = TrainRow("p", 0, [1, 2, 7, 8, 5, 9, 4], ((2, 4), (5, 7)), distillation=HINTS)


@pytest.mark.parametrize("padded", [False, True])
def test_every_turn_of_the_policy_is_predicted_and_no_tool_result_is(padded: bool) -> None:
    side = pack_side([TURNS.token_ids], [TURNS.spans], padded)
    assert side.input_ids.flatten()[side.selected].tolist() == [2, 7, 5, 9]


@pytest.mark.parametrize("padded", [False, True])
def test_the_teacher_reads_its_context_and_then_the_distilled_turn_alone(padded: bool) -> None:
    teacher = pack_micro_batch(MicroBatchRows([TURNS]), padded).teacher
    assert teacher is not None
    assert teacher.input_ids.flatten()[teacher.selected].tolist() == [6, 9, 2]
    if not padded:
        assert teacher.input_ids.numel() == 3 + 2 + 1 + 1  # both contexts, both turns: nothing of what came before


def test_response_ids_that_would_encode_differently_stay_as_they_were_sampled(chatml_tokenizer) -> None:
    pieces = [chatml_tokenizer.encode(piece, add_special_tokens=False) for piece in (" Hel", "lo", " ")]
    ids = [*pieces[2], *pieces[0], *pieces[1], chatml_tokenizer.eos_token_id]
    assert chatml_tokenizer.encode(chatml_tokenizer.decode(ids), add_special_tokens=False) != ids
    micro = pack_micro_batch(MicroBatchRows([TrainRow.single_turn("p", 0, [5], ids, [5, 6, 7])]))
    assert micro.teacher is not None
    for side in (micro.student, micro.teacher):
        assert side.input_ids[0, -len(ids) :].tolist() == ids
