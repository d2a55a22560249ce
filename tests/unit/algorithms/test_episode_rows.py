"""An episode that became several rows is one member of its group, whatever the algorithm."""

from __future__ import annotations

import pytest

from sdpo.algorithms.grpo import Grpo
from sdpo.algorithms.rows import rows_of, train_batch
from sdpo.algorithms.sdpo import Sdpo
from sdpo.config.compose import compose
from sdpo.records import Grade, GradeStatus, Group, Prompt, Reprompt, Sample, Turn
from sdpo.tokens.loss_batch import loss_batch


def episode(index: int, reward: float, sequences: list[list[int]], spans: list[tuple[int, tuple[int, int]]]) -> Sample:
    """`spans`: (sequence, span) of each turn, in the order in which they were drawn."""
    turns = [Turn(number, span, "", "stop", ()) for number, span in spans]
    ids = [i for number, (start, stop) in spans for i in sequences[number][start:stop]]
    grade = Grade(GradeStatus.OK if reward else GradeStatus.WRONG, reward)
    log_probs = [-float(i) for i in ids]
    return Sample("p", index, [1], ids, "", "stop", 0, log_probs, grade, turns=turns, sequences=sequences)


A = episode(0, 1.0, [[1, 5, 6], [1, 7, 8, 9], [1, 4]], [(0, (1, 3)), (1, (2, 3)), (1, (3, 4)), (2, (1, 2))])
B = episode(1, 0.0, [[1, 2, 3]], [(0, (1, 2)), (0, (2, 3))])
GROUP = Group(Prompt("p", (), "x"), [A, B])


class Builder:
    def __init__(self, *reprompts):
        self.reprompts = list(reprompts)

    def build(self, group, step):
        return self.reprompts, {}


def test_advantages_are_the_episodes_and_every_policy_token_of_its_rows_gets_them():
    config = compose([], "baseline_grpo")
    batch = train_batch([GROUP], Grpo(config, None).route([GROUP], 1), config.actor_rollout_ref.actor)
    rows = batch.mini_batches[0].rows
    assert [row.policy_gradient.advantage for row in rows] == [0.5] * 3 + [-0.5]
    assert [row.policy_ids for row in rows] == [[5, 6], [8, 9], [4], [2, 3]]
    assert all(list(row.sampler_logprobs) == [-float(i) for i in row.policy_ids] for row in rows)
    step = batch.mini_batches[0].denominators()["policy_gradient"]
    assert (step.tokens, step.sequences) == (7, 2)  # split or not: seven tokens, two episodes
    found = loss_batch(rows, batch.mini_batches[0].denominators(), 10).policy_gradient
    assert found.row_lengths.tolist() == [5, 5, 5, 2]
    assert found.advantages.tolist() == [0.5] * 5 + [-0.5] * 2


def test_a_reprompt_takes_the_place_of_the_prompt_and_a_hint_of_all_before_its_turn():
    hints = {1: [30, 31]}
    reprompt = Reprompt([20, 21], "", None, True, turns=hints)
    rows = rows_of(A, reprompt)
    contexts = [[(part.span, list(part.context_ids)) for part in row.distillation] for row in rows]
    assert contexts == [
        [((1, 3), [20, 21])],
        [((2, 3), [30, 31]), ((3, 4), [20, 21, 7, 8])],
        [((1, 2), [20, 21])],
    ]
    assert rows[1].tokens_of("distillation") == 2


def test_turns_that_nobody_is_told_about_are_in_no_loss_and_rows_without_any_are_not_made():
    config = compose([])
    told = Sdpo(config, Builder(Reprompt([], "", None, True, turns={1: [30, 31]}), None))
    [rows] = told.route([GROUP], 1).rows
    assert [(row.token_ids, [part.span for part in row.distillation]) for row in rows] == [([1, 7, 8, 9], [(2, 3)])]


def test_a_sequence_that_does_not_begin_with_the_prompt_has_no_place_for_a_reprompt():
    forked = episode(0, 0.0, [[1, 5], [9, 6, 7]], [(0, (1, 2)), (1, (2, 3))])
    assert len(rows_of(forked, Reprompt([20], "", None, True))) == 1
    assert len(rows_of(forked)) == 2


@pytest.mark.parametrize("log_probs", [None, [-1.0]])
def test_a_single_answer_is_the_row_it_always_was(log_probs):
    sample = Sample("p", 3, [1, 2], [7], "", "stop", 0, log_probs)
    [row] = rows_of(sample, Reprompt([9], "", None, True))
    assert (row.token_ids, row.spans, row.sampler_logprobs) == ([1, 2, 7], ((2, 3),), log_probs)
    assert [(part.span, part.context_ids) for part in row.distillation] == [((2, 3), [9])]
