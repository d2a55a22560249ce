"""What pre-training teaches, form by form."""

from __future__ import annotations

import random

import pytest

from sdpo.config.schema import SelfDistillationConfig
from sdpo.embedded.attempts import replayed_grade, wrong_answer, wrong_program
from sdpo.embedded.corpus import SECOND_PHASE, Corpus, draw_steps, practice_problem, reprompt_text, told_program
from sdpo.embedded.grader import recognised_steps
from sdpo.embedded.programs import Step, body, held_out_programs, run_steps
from sdpo.reprompt.templates import Templates

STEPS = (Step("multiply", 3), Step("subtract", 4), Step("absolute"))
DRAWN = 1500


@pytest.fixture(scope="module")
def hard() -> list:
    corpus = Corpus(SECOND_PHASE["hard"], seed=1)
    return [corpus.draw() for _ in range(DRAWN)]


def length_of(answer: str) -> int:
    return answer.count("\n")


def test_the_stream_is_the_same_for_the_same_seed():
    first, second, other = (Corpus(SECOND_PHASE["hard"], seed) for seed in (4, 4, 5))
    texts = [[corpus.draw() for _ in range(30)] for corpus in (first, second, other)]
    assert texts[0] == texts[1] != texts[2]


def test_every_form_is_there_with_about_its_share(hard):
    mix = SECOND_PHASE["hard"]
    for form in ("direct", "solution", "feedback", "both"):
        share = sum(text.form == form for text in hard) / DRAWN
        assert abs(share - getattr(mix, form)) < 0.05


def test_every_answer_is_a_program_of_known_steps(hard):
    for text in hard:
        steps, returned = recognised_steps(text.answer)
        assert returned and None not in steps and body(steps) == text.answer


def test_no_held_out_program_is_ever_asked(hard):
    held_out = {body(steps) for steps in held_out_programs()}
    assert not held_out & {text.answer for text in hard if text.form != "direct"}
    rng = random.Random(0)
    assert all(draw_steps(rng, (0, 0, 1)) not in held_out_programs() for _ in range(2000))


def test_hard_never_shows_a_three_step_sentence_asked_directly(hard):
    assert {length_of(text.answer) for text in hard if text.form == "direct"} == {1, 2}
    assert 3 in {length_of(text.answer) for text in hard if text.form != "direct"}


def test_easy_shows_three_steps_directly_and_mostly_corrupted():
    corpus = Corpus(SECOND_PHASE["easy"], seed=1)
    direct = [text for text in (corpus.draw() for _ in range(DRAWN)) if text.form == "direct"]
    assert any(length_of(text.answer) == 3 for text in direct)
    assert 0.5 < SECOND_PHASE["easy"].direct_corrupted < 1


def test_the_demonstration_is_followed_whoever_it_belongs_to(hard):
    for text in hard:
        if text.form in ("solution", "both"):
            assert f"Correct solution:\n\n{text.answer}\n" in text.user


def test_the_feedback_is_followed_whoever_it_belongs_to():
    assert told_program(STEPS, "Step 2 should be: add 1\nIt makes") == (STEPS[0], Step("add", 1), STEPS[2])
    assert told_program(STEPS, "Nothing should follow step 3") == STEPS
    assert told_program(STEPS[:2], "Step 3 should be: negate\n") == (*STEPS[:2], Step("negate"))


def test_the_reprompt_is_the_one_that_training_renders():
    templates = Templates(SelfDistillationConfig())
    for solution in (None, "x = {x}\nreturn x"):
        for feedback in (None, "Wrong answer\nInput: 1"):
            assert reprompt_text("Q {0}", solution, feedback) == templates.user_message("Q {0}", solution, feedback)


def test_wrong_answers_fail_and_their_feedback_names_a_step_of_the_problem():
    rng = random.Random(2)
    problem = practice_problem(STEPS, rng)
    for _ in range(100):
        text, grade = wrong_answer(problem, STEPS, rng)
        assert grade == replayed_grade(problem, text) and grade.reward == 0.0
        assert any(step.phrase in grade.feedback for step in STEPS) or "Nothing should follow" in grade.feedback


def test_a_wrong_program_is_never_the_program_itself():
    rng = random.Random(2)
    assert all(wrong_program(STEPS, rng) != STEPS for _ in range(300))


def test_practice_problems_keep_their_numbers_short_and_their_answers_true():
    rng = random.Random(3)
    for _ in range(100):
        steps = draw_steps(rng, (0, 0, 1))
        cases = practice_problem(steps, rng).ground_truth["cases"]
        assert cases and all(run_steps(steps, case["args"][0])[-1] == case["expected"] for case in cases)
