from __future__ import annotations

import re

import pytest

from sdpo.grading.feedback import FeedbackOptions, capped, clean, describe_tests
from sdpo.records import GradeStatus, TestOutcome

WRONG = TestOutcome(GradeStatus.WRONG, "add(1, 2)", "3", "-1")


def test_a_wrong_answer_shows_input_expected_and_got():
    assert describe_tests([WRONG], FeedbackOptions()) == "Wrong answer\nInput: add(1, 2)\nExpected: 3\nGot: -1"


def test_the_two_shortest_wrong_cases_are_shown():
    long = TestOutcome(GradeStatus.WRONG, "add(1000, 2000)", "3000", "-1000")
    text = describe_tests([long, WRONG, long, TestOutcome(GradeStatus.WRONG, "f(1)", "1", "2")], FeedbackOptions())
    assert text.count("Wrong answer") == 2
    assert "1000" not in text


def test_a_runtime_error_comes_before_a_limit_and_a_limit_before_a_wrong_answer():
    timeout = TestOutcome(GradeStatus.TIMEOUT, "f(9)", error="1 s")
    crash = TestOutcome(
        GradeStatus.RUNTIME_ERROR, "1", error="ZeroDivisionError: division by zero\nline 3, in <module>: f()"
    )
    assert describe_tests([WRONG, timeout, crash], FeedbackOptions()) == (
        "Runtime error\nInput: 1\nZeroDivisionError: division by zero\nline 3, in <module>: f()"
    )
    assert describe_tests([WRONG, timeout], FeedbackOptions()) == "Time limit exceeded (1 s)\nInput: f(9)"


def test_hidden_tests_are_not_mentioned_when_only_public_ones_may_be():
    hidden = TestOutcome(GradeStatus.WRONG, "f(1)", "SECRET-91", "0", hidden=True)
    assert describe_tests([hidden], FeedbackOptions(public_only=True)) == ""
    assert "SECRET-91" not in describe_tests([hidden, WRONG], FeedbackOptions(public_only=True))
    assert "SECRET-91" in describe_tests([hidden], FeedbackOptions())


def test_passing_tests_say_nothing():
    assert describe_tests([TestOutcome(GradeStatus.OK, "1", "1", "1")], FeedbackOptions()) == ""


def test_text_is_cut_at_the_limit_and_says_so():
    assert capped("x" * 3000, 2000).endswith("(cut)")
    assert len(capped("x" * 3000, 2000)) == 2000
    text = describe_tests([TestOutcome(GradeStatus.WRONG, "x" * 9000, "y" * 9000, "z" * 9000)], FeedbackOptions())
    assert len(text) < 2000
    assert "(cut)" in text


@pytest.mark.parametrize(
    "hostile",
    [
        "\x1b[2J",
        "\x00",
        "\ud800",
        "\u202e",
        "<|im_end|>",
        "<|im_start|>user",
        "</s>",
        "<s>",
        "[INST]",
        "<\uff5cend\uff5c>",
        "\u2066",
        "\x7f",
    ],
)
def test_program_output_cannot_carry_control_characters_or_chat_tokens(hostile):
    text = clean(f"a{hostile}b")
    assert hostile not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]", text)


def test_ordinary_text_is_left_alone():
    text = "a < b, x<y, [1, 2], \u4e2d\u6587, \u00e9, tab\there"
    assert clean(text) == text


def test_the_layout_of_the_reference_is_available():
    text = describe_tests([WRONG], FeedbackOptions(style="leetcode"))
    assert text == "Wrong answer\n\nInput\n\nadd(1, 2)\n\nOutput\n\n-1\n\nExpected\n\n3"


def test_the_template_of_a_wrong_case_can_be_set():
    options = FeedbackOptions(template="{input} gave {got}, not {expected}")
    assert describe_tests([WRONG], options) == "add(1, 2) gave -1, not 3"
