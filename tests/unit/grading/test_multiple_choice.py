from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.grading.multiple_choice import MultipleChoiceGrader, extract_letter, read_gold
from sdpo.records import GradeStatus, Prompt


def grade(response, gold="B", truncated=False, **options):
    prompt = Prompt("p", ({"role": "user", "content": "?"},), "sciknoweval", gold)
    return MultipleChoiceGrader(**options).grade(prompt, response, truncated)


@pytest.mark.parametrize(
    "response",
    [
        "<answer>B</answer>",
        "<answer>b</answer>",
        "<answer>\nB\n</answer>",
        "<answer>B. mitochondria</answer>",
        "<answer>B: mitochondria</answer>",
        "<answer>B mitochondria</answer>",
        "<answer>(B)</answer>",
        "<answer>B)</answer>",
        "<answer>**B**</answer>",
        "<answer>Option B</answer>",
        "<answer>\\boxed{B}</answer>",
        "<ANSWER>B</ANSWER>",
        "<answer>A</answer> wait <answer>B</answer>",
        "The answer is B.",
        "The correct answer is (B)",
        "So the final answer: **B**",
        "\\boxed{B}",
        "\\boxed{\\text{B}}",
        "Thinking...\nB",
        "Thinking...\n(B)",
        "The answer is b.",
    ],
)
def test_the_chosen_letter_is_found(response):
    assert grade(response).reward == 1.0


@pytest.mark.parametrize(
    "response",
    [
        "<answer></answer>",
        "<answer>ABCD</answer>",
        "<answer>A or B</answer>",
        "<answer>A, B</answer>",
        "<answer>mitochondria</answer>",
        "<answer>1</answer>",
        "<answer>F</answer>",
        "A cell is a unit of life. I think so.",
        "The answer is a matter of taste",
        "I",
        "Because",
        "Answer: A cell is a unit of life.",
        "",
        "<answer>B",
        "B is one of the options, and so is C",
    ],
)
def test_without_one_letter_it_is_a_format_error(response):
    assert grade(response).status is GradeStatus.FORMAT_ERROR


def test_another_letter_is_wrong_and_the_right_one_is_not_given_away():
    result = grade("<answer>C</answer>")
    assert (result.status, result.reward) == (GradeStatus.WRONG, 0.0)
    assert "B" not in result.feedback
    assert "B" in grade("<answer>C</answer>", reveal_gold=True).feedback


def test_tags_can_be_required():
    assert grade("B", answer_tags := "B", tags_required=True).status is GradeStatus.FORMAT_ERROR
    assert grade("<answer>B</answer>", answer_tags, tags_required=True).status is GradeStatus.OK


def test_a_response_cut_off_before_its_answer_is_truncated():
    assert grade("I think the ans", truncated=True).status is GradeStatus.TRUNCATED


def test_the_pronoun_and_the_article_are_answers_only_when_they_are_meant():
    nine = {"answer": "I", "choices": 10}
    assert grade("<answer>I</answer>", nine).reward == 1.0
    assert grade("The answer is I think unclear", nine).status is GradeStatus.FORMAT_ERROR
    assert grade("<answer>A</answer>", {"answer": "A", "choices": 2}).reward == 1.0


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ("B", ("B", 4)),
        ("(b)", ("B", 4)),
        ({"answer": "E", "choices": 5}, ("E", 5)),
        ({"answer": 1, "choices": ["w", "x", "y", "z"]}, ("B", 4)),
        ({"answer": "Z", "choices": 26}, ("Z", 26)),
        ({"answer": "E", "choices": 4}, None),
        ({"answer": 4, "choices": ["w", "x", "y", "z"]}, None),
        ({"answer": "A", "choices": 1}, None),
        ({"answer": "A", "choices": 27}, None),
        ("mitochondria", None),
        (None, None),
        (True, None),
    ],
)
def test_gold_answers_are_letters_or_positions_from_zero(truth, expected):
    assert read_gold(truth) == expected


def test_a_gold_answer_outside_the_choices_is_never_rewarded():
    result = grade("<answer>B</answer>", {"answer": "x", "choices": 4})
    assert (result.status, result.reward) == (GradeStatus.INVALID_GOLD, None)


def test_letters_beyond_the_choices_are_no_answer():
    assert extract_letter("<answer>E</answer>", 4) is None
    assert extract_letter("<answer>E</answer>", 5) == "E"


WRAPPERS = (
    "${}$",
    "\\({}\\)",
    "\\[{}\\]",
    "({})",
    "[{}]",
    "（{}）",
    "【{}】",
    "**{}**",
    "__{}__",
    "*{}*",
    "`{}`",
    '"{}"',
    "'{}'",
    "“{}”",
    "<b>{}</b>",
    "\\textbf{{{}}}",
    "\\text{{{}}}",
    "\\mathrm{{{}}}",
    "\\mathbf {{{}}}",
    "\\boldsymbol{{{}}}",
    "{{\\bf {}}}",
    "\\color{{red}}{{{}}}",
    "\\textcolor{{blue}}{{{}}}",
    "\\boxed{{{}}}",
    "\\fbox{{ {} }}",
    "\\left({}\\right)",
    " {} ",
    "{}.",
)
FULL_WIDTH = str.maketrans("ABCD", "ＡＢＣＤ")
PLACES = (
    "Answer: {}",
    "The answer is {}.",
    "**Final answer:** {}",
    "The correct option is: {}",
    "So we are done.\n\n{}",
    "It follows that\n$$\\boxed{{{}}}$$",
    "<answer>{}</answer>",
    "<answer>\n{}\n</answer>",
    "Final Answer: option {}",
)


@given(
    st.sampled_from("ABCD"),
    st.lists(st.sampled_from(WRAPPERS), max_size=4),
    st.booleans(),
    st.sampled_from(PLACES),
    st.sampled_from("ABCD"),
)
def test_a_letter_in_any_wrappers_is_that_letter_and_no_other(letter, wrappers, wide, place, gold):
    text = letter.translate(FULL_WIDTH) if wide else letter
    for wrapper in wrappers:
        text = wrapper.format(text)
    assert grade(place.format(text), gold).reward == float(letter == gold)


@given(
    st.permutations("ABCD"),
    st.lists(st.sampled_from(WRAPPERS[:-1]), max_size=3),
    st.sampled_from([" or ", " and ", ", ", " / ", " & "]),
    st.sampled_from([place for place in PLACES if "." not in place]),
    st.booleans(),
)
def test_several_letters_in_any_wrappers_are_no_answer(order, wrappers, joint, place, each):
    first, second = order[:2]
    if each:
        for wrapper in wrappers:
            first, second = wrapper.format(first), wrapper.format(second)
    text = first + joint + second
    if not each:
        for wrapper in wrappers:
            text = wrapper.format(text)
    assert grade(place.format(text), order[1]).reward == 0.0


@pytest.mark.parametrize(
    "response",
    ["\\boxed{A} or \\boxed{B}", "$\\boxed{A}$ and $\\boxed{B}$", "The answer is A or B.", "The answer is b or c",
     "\\boxed{A}\\boxed{B}", "\\boxed{B", "\\boxed{\\text{A or B}}", "Answer: $\\frac{A}{B}$", "x\n**A** **B**"],
)  # fmt: skip
def test_neither_several_letters_nor_an_open_box_are_an_answer(response):
    assert grade(response).status is GradeStatus.FORMAT_ERROR


def test_the_last_of_two_answers_decides_when_text_stands_between():
    assert grade("\\boxed{A}. No, that is wrong: \\boxed{\\textbf{B}}").reward == 1.0
    assert grade("The answer is B, because A contradicts it.").reward == 1.0


USUAL = (
    "Answer: {}\n\nExplanation: A is wrong because of X.",
    "{} is the correct answer.",
    "({}) is correct.",
    "Therefore, option {} is correct.",
    "the answer is therefore {}",
    "Hence the answer would be {}.",
    "So I choose {}.",
    "I'll go with option {}.",
    "Answer is {} because D is wrong",
    "<answer>The answer is {}.</answer>",
    "D is wrong, so the answer is {}.",
    "Since it is not D, the most important point is the rate; the answer is {} as computed.",
    "I'm not sure but the answer is {}",
    "The correct answer is {} which is not common.",
    "Option {} is right.\nD is not correct.",
    "I do not like D. The answer is {}.",
)


@pytest.mark.parametrize("statement", USUAL)
@pytest.mark.parametrize("letter", "BC")
def test_the_usual_statements_name_a_letter(statement, letter):
    assert grade(statement.format(letter), letter).reward == 1.0
    assert grade(statement.format(letter), "A").status is GradeStatus.WRONG


@pytest.mark.parametrize("letter", "BC")
@pytest.mark.parametrize(
    "statement",
    ["<answer>{} is incorrect</answer>", "I doubt that the answer is {}", "<answer>I doubt the answer is {}</answer>",
     "It would be wrong to say the answer is {}.", "I don't think the answer is {}.", "{} is not the correct answer.",
     "<answer>{} is definitely not right</answer>", "<answer>Not {}</answer>", "The answer is {} is wrong",
     "I would not say that {} is correct.", "The answer is not {}.", "If the answer is {}, we are lost."],
)  # fmt: skip
def test_a_denied_or_doubted_letter_is_no_answer(statement, letter):
    assert grade(statement.format(letter), letter).status is GradeStatus.FORMAT_ERROR


BOXES = ("\\boxed{{{}}}", "$\\boxed{{\\text{{{}}}}}$", "**\\boxed{{{}}}**", "\\[\\boxed{{({})}}\\]")
DENIALS = ("{} is wrong", "It is not {}", "{} is not correct.", "{}, which is incorrect", "{} isn't right",
           "I doubt it is {}", "I don't think the answer is {}", "{} cannot be right", "If the answer is {}",
           "Not {}")  # fmt: skip
STATEMENTS = ("{}", "{} is correct and D is not", "A is wrong, so {}",
              "Since it does not converge the answer is {}", "\\boxed{{A}} is wrong. So {}", "This is not hard: {}",
              "The answer is not A but {}", "If x > 1 then {}")  # fmt: skip


@given(st.sampled_from("BC"), st.sampled_from(BOXES), st.sampled_from(DENIALS), st.sampled_from(STATEMENTS))
def test_a_box_counts_unless_it_is_denied(letter, box, denial, statement):
    boxed = box.format(letter)
    assert grade(denial.format(boxed), letter).reward == 0.0
    assert grade(statement.format(boxed), letter).reward == 1.0


@pytest.mark.parametrize("letter", "BC")
@pytest.mark.parametrize(
    "sentence",
    ["It is {}", "It's {}.", "So it is ({})", "I think {}", "I think it is **{}**", "I would go with {}",
     "Therefore, {}", "This must be option {}", "The letter is {}", "My final choice is {}", "That's {}!"],
)  # fmt: skip
def test_the_shortest_sentences_say_a_letter_in_a_tag(sentence, letter):
    assert grade(f"<answer>{sentence.format(letter)}</answer>", letter).reward == 1.0
    assert grade(f"Let us see.\n{sentence.format(letter)}", letter).reward == 1.0


@pytest.mark.parametrize(
    "content", ["Vitamin {}", "It is vitamin {}", "This is {} code", "It is not {}", "I doubt it is {}", "A or {}"]
)
def test_a_letter_within_the_text_of_a_choice_is_none(content):
    assert grade(f"<answer>{content.format('B')}</answer>", "B").reward == 0.0
