from __future__ import annotations

import pytest

from sdpo.errors import DataError
from sdpo.records import TrainRow
from sdpo.tokens.packing import PackedSide, pack_chunk, pack_side, token_batch
from sdpo.tokens.partition import Chunk

ROWS = [
    TrainRow(
        "p", 0, [5, 6], [7, 8, 2], teacher_prompt_ids=[5, 9, 9, 6], sampler_logprobs=[-0.1, -0.2, -0.3], weight=0.5
    ),
    TrainRow("p", 1, [5, 6, 4], [3], teacher_prompt_ids=[5], sampler_logprobs=[-0.4]),
]


def test_rows_of_one_prompt_are_its_tokens_once_and_then_the_responses() -> None:
    side = pack_side([[5, 6], [5, 6]], [[7, 8, 2], [3]])
    assert side.input_ids.tolist() == [[5, 6, 3, 7, 8, 2]] and side.attention_mask is None
    assert side.position_ids.tolist() == [[0, 1, 2, 2, 3, 4]]
    assert side.selected.tolist() == [1, 3, 4, 1]


def test_padded_rows_are_prompt_plus_response() -> None:
    side = pack_side([[5, 6], [5, 6, 4]], [[7, 8, 2], [3]], padded=True)
    assert side.input_ids.tolist() == [[5, 6, 7, 8, 2], [5, 6, 4, 3, 0]]
    assert side.attention_mask is not None and side.tree is None
    assert side.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert side.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]


@pytest.mark.parametrize("padded", [False, True])
def test_the_selected_states_predict_the_response_tokens(padded: bool) -> None:
    """Every place is followed by one token only, so a shift by one selects another token."""
    prompts, responses = [[10], [20, 21]], [[11, 12, 13], [22, 23]]
    side = pack_side(prompts, responses, padded)
    assert (side.input_ids.flatten()[side.selected] + 1).tolist() == [11, 12, 13, 22, 23]


@pytest.mark.parametrize("padded", [False, True])
def test_both_sides_read_the_response_ids_verbatim(padded: bool) -> None:
    micro = pack_chunk(Chunk(ROWS), padded)
    for side, prompts in (
        (micro.student, [row.prompt_ids for row in ROWS]),
        (micro.teacher, [row.teacher_prompt_ids for row in ROWS]),
    ):
        read = _sequences(side)
        assert [prompt + row.response_ids for prompt, row in zip(prompts, ROWS, strict=True)] == read


def _sequences(side: PackedSide) -> list[list[int]]:
    if side.tree is None:
        return [ids[mask.bool()].tolist() for ids, mask in zip(side.input_ids, side.attention_mask, strict=True)]
    paths = side.tree.path_places.split(side.tree.path_lengths.tolist())
    found = [side.tree.tokens[path].tolist() for path in paths]
    return sorted(found, key=lambda ids: [row.response_ids[-1] for row in ROWS].index(ids[-1]))


def test_student_and_teacher_select_the_same_tokens_in_the_same_order() -> None:
    micro = pack_chunk(Chunk(ROWS))
    assert micro.teacher is not None
    student = micro.student.input_ids.flatten()[micro.student.selected]
    teacher = micro.teacher.input_ids.flatten()[micro.teacher.selected]
    assert student.tolist() == [6, 7, 8, 4] and teacher.tolist() == [6, 7, 8, 5]


def test_rows_without_teacher_prompt_get_no_teacher_side() -> None:
    assert pack_chunk(Chunk([TrainRow("p", 0, [1], [2])])).teacher is None


def test_masks_come_from_lengths_so_the_end_id_is_trained_when_it_is_also_the_pad_id() -> None:
    side = pack_side([[1]] * 3, [[5, 6, 0], [5, 0], [5, 6, 8]], padded=True)
    assert side.attention_mask is not None
    assert side.attention_mask[:, 1:].tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 1]]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="without prompt tokens"):
        pack_side([[]], [[1]])


def test_token_batch_is_flat_in_row_order() -> None:
    batch = token_batch(ROWS, mini_batch_tokens=40, mini_batch_sequences=8, max_response_length=16)
    assert batch.response_ids.tolist() == [7, 8, 2, 3]
    assert batch.row.tolist() == [0, 0, 0, 1]
    assert batch.row_lengths.tolist() == [3, 1]
    assert batch.weights.tolist() == [0.5, 1.0]
    assert batch.sampler_log_probs is not None
    assert batch.sampler_log_probs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4])
    assert (batch.tokens, batch.sequences, batch.max_response_length) == (40, 8, 16)
    assert batch.advantages is None and batch.old_log_probs is None


def test_token_batch_has_no_sampler_log_probs_unless_every_row_has() -> None:
    rows = [ROWS[0], TrainRow("p", 1, [5], [3], advantage=-1.5)]
    batch = token_batch(rows, 4, 2, 16)
    assert batch.sampler_log_probs is None
    assert batch.advantages is not None and batch.advantages.tolist() == [0.0, -1.5]


def test_sampler_log_probs_of_another_length_are_an_error() -> None:
    with pytest.raises(DataError, match="p/0: 2 sampler log-probs for 3"):
        token_batch([TrainRow("p", 0, [5], [3, 4, 5], sampler_logprobs=[-1.0, -1.0])], 3, 1, 16)


def test_response_ids_that_would_encode_differently_stay_as_they_were_sampled(chatml_tokenizer) -> None:
    pieces = [chatml_tokenizer.encode(piece, add_special_tokens=False) for piece in (" Hel", "lo", " ")]
    ids = [*pieces[2], *pieces[0], *pieces[1], chatml_tokenizer.eos_token_id]
    assert chatml_tokenizer.encode(chatml_tokenizer.decode(ids), add_special_tokens=False) != ids
    micro = pack_chunk(Chunk([TrainRow("p", 0, [5], ids, teacher_prompt_ids=[5, 6, 7])]))
    assert micro.teacher is not None
    for side in (micro.student, micro.teacher):
        assert side.input_ids[0, -len(ids) :].tolist() == ids
