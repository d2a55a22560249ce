from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sdpo.data.boxed import NoAnswer, last_boxed
from sdpo.grading.math_equality import Equality
from sdpo.grading.math_pool import AlgebraFault, AlgebraPool, AlgebraProcess
from sdpo.grading.math_reading import read
from sdpo.grading.mathematics import MathGrader, gold_fault
from sdpo.records import GradeStatus, Prompt

SECONDS = 2.0  # of CPU time
PAIRS: dict[str, list[tuple[str, str, float]]] = {}
for line in Path(__file__).with_name("math_pairs.txt").read_text(encoding="utf-8").splitlines():
    if line.startswith("= "):
        claim = PAIRS.setdefault(line[2:], [])
    elif line and not line.startswith("#"):
        gold, answer, reward = line.split(" // ")
        claim.append((gold, answer, float(reward)))


@pytest.fixture(scope="module")
def pool():
    pool = AlgebraPool(2, SECONDS)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def grader(pool):
    return MathGrader(pool)


def prompt(gold):
    return Prompt("p", ({"role": "user", "content": "?"},), "math", gold)


def grade(grader, response, gold, truncated=False):
    return grader.grade(prompt(gold), response, truncated)


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"Maybe \boxed{3}? No, I forgot a factor. \boxed{4}", "4"),
        (r"\boxed{" + "1+" * 60 + "1}", "61"),
        (r"\boxed{4} " + "This also fits the bound. " * 10, "4"),
        (r"\boxed {4}", "4"),
        (r"\fbox{4}", "4"),
        (r"\boxed 4.", "4"),
        (r"\boxed{\text{(B)}}", "B"),
        (r"\boxed{1{,}000}", "1000"),
        (r"\boxed{1,234,567}", "1234567"),
        (r"\boxed{\boxed{4}}", "4"),
        (r"\boxed{\frac{9}{7}}", r"\dfrac{9}{7}"),
        (r"\boxed{\frac97}", r"\dfrac{9}{7}"),
        (r"\boxed{9/7}", r"\frac{9}{7}"),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{-0.50}", "-1/2"),
        (r"\boxed{$\left( 1, 2 \right)$}", "(1,2)"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2"),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}"),
        (r"\boxed{\{2,1\}}", r"\{1,2\}"),
        (r"\boxed{\text{East}}", r"\text{east}"),
        (r"\boxed{even}", "even"),
        (r"\boxed{5\text{ cm}}", "5"),
        (r"\boxed{x = 5}", "5"),
        (r"\boxed{\pi}", r"\pi"),
        (r"\boxed{42}", 42),
        (r"\boxed{72}", "72"),
    ],
)
def test_a_right_final_answer_is_right_in_every_spelling(grader, response, gold):
    assert grade(grader, response, gold).reward == 1.0


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"Maybe \boxed{4}? No. \boxed{3}", "4"),
        (r"\boxed{0.3333}", r"\frac{1}{3}"),
        (r"\boxed{2^{200}+1}", "2^{200}"),
        (r"\boxed{100000000000000000001}", "100000000000000000000"),
        (r"\boxed{(2,1)}", "(1,2)"),
        (r"\boxed{A}", "B"),
        (r"\boxed{west}", "east"),
        (r"\boxed{}", "0"),
        (r"\boxed{4}", "5"),
        (r"\boxed{4, 5}", "4"),
    ],
)
def test_a_wrong_final_answer_is_wrong(grader, response, gold):
    result = grade(grader, response, gold)
    assert (result.status, result.reward) == (GradeStatus.WRONG, 0.0)
    assert str(gold) not in result.feedback


class InThisProcess:
    """The comparison that the algebra process makes."""

    def __init__(self):
        self.equal = Equality().texts


@pytest.mark.parametrize("claim", PAIRS)
def test_pairs_of_gold_and_answer(claim):
    here = MathGrader(InThisProcess())
    grades = [(gold, answer, grade(here, rf"\boxed{{{answer}}}", gold).reward) for gold, answer, _ in PAIRS[claim]]
    assert grades == PAIRS[claim]


@pytest.mark.parametrize("claim", PAIRS)
def test_the_process_gives_the_same_verdict(grader, claim):
    for gold, answer, reward in PAIRS[claim][:2]:
        assert grade(grader, rf"So it is \boxed{{{answer}}}.", gold).reward == reward


@pytest.mark.parametrize(
    ("response", "gold", "reward"),
    [
        (r"The points are $\boxed{(2,2)}$ and $\boxed{(6,2)}$.", "(2,2),(6,2)", 1),
        (r"$\boxed{(6,2)}$, $\boxed{(2,2)}$", "(2,2),(6,2)", 1),
        (r"$\boxed{1}$ \text{ or } $\boxed{2}$, or \fbox{3}", "1,2,3", 1),
        (r"$\boxed{1}$ and $\boxed{2}$", "2", 0),
        (r"$x = \boxed{2}$ and $y = \boxed{3}$", "(2,3)", 1),
        (r"$\boxed{4} \quad \boxed{5}$", "4,5", 1),
        (r"$\boxed{4}$, \boxed{4}", "4", 1),
        (r"First \boxed{3}. Then \boxed{4}", "4", 1),
        (r"First \boxed{3} and then \boxed{4}", "4", 1),
        ("\\boxed{3}\n\n\\boxed{4}", "4", 1),
        (r"\boxed{32,\!349}", "32349", 1),
        (r"\boxed{\text{It is } 32}", "32", 0),
    ],
)
def test_several_boxes_in_one_sentence_are_one_answer(grader, response, gold, reward):
    assert grade(grader, response, gold).reward == reward


@pytest.mark.parametrize("response", ["the value 4 shows up here, but I give no box", "4", "", r"boxed{4}"])
def test_no_box_is_a_format_error(grader, response):
    assert grade(grader, response, "4").status is GradeStatus.FORMAT_ERROR


@pytest.mark.parametrize(
    "response", [r"\boxed{4} is wrong.", r"$\boxed{4}$ isn't right", r"\boxed{4}, which is incorrect"]
)
def test_a_box_that_is_taken_back_is_no_answer(grader, response):
    assert grade(grader, response, "4").status is GradeStatus.FORMAT_ERROR
    assert grade(grader, rf"{response} So it is \boxed{{5}}", "5").reward == 1.0
    assert grade(grader, r"\boxed{4} is right, and 5 is wrong", "4").reward == 1.0


def test_a_box_that_is_cut_off_takes_no_credit_from_an_earlier_one(grader):
    response = r"First part: \boxed{4}. So the final answer is \boxed{1"
    assert grade(grader, response, "4", truncated=True).status is GradeStatus.TRUNCATED
    assert grade(grader, response, "4").reward == 0.0


@pytest.mark.parametrize("gold", ["see the figure", "", "   ", None, True, "the answer is 4 apples"])
def test_a_gold_answer_that_is_no_mathematics_is_never_rewarded(grader, gold):
    result = grade(grader, r"\boxed{4}", gold)
    assert result.status is GradeStatus.INVALID_GOLD
    assert result.reward is None
    assert grader.check(prompt(gold))


@pytest.mark.parametrize("gold", ["4", r"\dfrac{9}{7}", r"\text{east}", "x^2", "(1,2)", "B", r"\boxed{5}", 3])
def test_a_readable_gold_answer_is_accepted_at_data_load(grader, gold):
    assert grader.check(prompt(gold)) is None


def test_the_verdict_is_the_same_in_threads_and_on_the_main_thread(grader):
    pairs = [(r"\boxed{x+1}", "1+x"), (r"\boxed{\frac{2}{4}x}", "x/2"), (r"\boxed{7}", "7"), (r"\boxed{y}", "z")] * 4
    here = [grade(grader, *pair).reward for pair in pairs]
    with ThreadPoolExecutor(4) as threads:
        there = list(threads.map(lambda pair: grade(grader, *pair).reward, pairs))
    assert here == there == [1.0, 1.0, 1.0, 0.0] * 4


@pytest.mark.parametrize("monster", [r"9^{9^{9^{9}}}", r"10^{10^{10}}!", r"\sum_{k=1}^{10^{12}} k^{k}"])
def test_an_expression_that_would_hang_is_wrong_and_its_process_is_replaced(grader, pool, monster):
    before = pool.restarts
    assert grade(grader, rf"\boxed{{{monster}}}", "5x").reward == 0.0
    assert pool.restarts <= before + 1
    assert grade(grader, r"\boxed{2x+x}", "3x").reward == 1.0


def test_a_dead_algebra_process_is_replaced(grader, pool):
    assert grade(grader, r"\boxed{x+x}", "2x").reward == 1.0
    processes = list(pool._idle.queue)
    for process in processes:
        if process is not None:
            process._process.kill()
    assert grade(grader, r"\boxed{y+y}", "2y").reward == 1.0


def test_algebra_that_cannot_start_is_a_fault_of_the_grader(monkeypatch):
    monkeypatch.setattr("sdpo.grading.math_pool.WORKER", "/nowhere/worker.py")
    with pytest.raises(AlgebraFault):
        AlgebraProcess()


def test_the_last_box_is_found_with_nested_and_escaped_braces():
    assert last_boxed(r"\boxed{\{1\}}") == r"\{1\}"
    assert last_boxed(r"\boxed{a_{b_{c}}}") == "a_{b_{c}}"
    assert last_boxed(r"\boxed{x \boxed{y}}") == r"x \boxed{y}"
    for text in (r"\boxed{", r"\boxed{a", r"\boxed", "\\boxed{" * 5000):
        with pytest.raises(NoAnswer):
            last_boxed(text)


def test_the_box_is_found_in_twenty_thousand():
    assert last_boxed("\\boxed{" * 20_000 + "4" + "}" * 20_000) == "4"
    assert last_boxed("\\boxed{1} " * 20_000) == "1"


def test_gold_answers_are_checked_without_the_algebra():
    for gold in (r"\frac{x+1}{2}", "(1, 2)", r"\{1,2\}", "x=5", r"2\sqrt{3}", "sin x", r"[0, \infty)", "east"):
        assert gold_fault(gold) is None, gold
    for gold in ("see the figure", r"\frac{1}{2", "", "1}"):
        assert gold_fault(gold), gold


@pytest.mark.parametrize(
    "gold",
    ["1/0", r"\frac{1}{0}", r"\frac{x}{0.0}", "x/0", r"\frac{0}{0}", r"(1, \frac{1}{\frac{0}{2}})", "x=2/0", "1/0%"],
)
def test_a_gold_answer_that_divides_by_zero_is_refused_at_data_load(grader, gold):
    assert "has no value: it divides by zero" in grader.check(prompt(gold))
    assert grade(grader, rf"\boxed{{{gold}}}", gold).status is GradeStatus.INVALID_GOLD


@pytest.mark.parametrize("gold", [r"\frac{1}{1-1}", "1/(2-2)", "0^{-1}", r"\ln 0", r"\tan 90^\circ"])
def test_a_gold_answer_without_a_value_is_found_when_an_answer_is_compared(grader, gold):
    result = grade(grader, r"\boxed{2x}", gold)
    assert (result.status, result.reward) == (GradeStatus.INVALID_GOLD, None)


@pytest.mark.parametrize("gold", ["1/0.5", r"\frac{0}{1}", r"\frac{1}{0!}", "0", r"\frac{x}{1-y}", r"\infty", "1/0.01"])
def test_a_gold_answer_with_a_zero_that_divides_nothing_is_no_fault(grader, gold):
    assert grader.check(prompt(gold)) is None
    assert grade(grader, r"\boxed{17}", gold).status is GradeStatus.WRONG


def test_numbers_are_read_exactly():
    assert read("1,000.50") == read(r"\frac{2001}{2}")
    assert read("0.1") != read("0.10000000000000001")


def test_closing_a_pool_leaves_another_one_at_work(pool):
    other = AlgebraPool(1, SECONDS)
    assert other.equal("x + x", "2x")
    other.close()
    assert pool.equal("x + x", "2x") and not pool.equal("x", "2x")


HASHES = 'Tom has 4 apples. Let\'s think step by step and output the final answer after "####".'
ANSWER = "The last line of your response should be of the form Answer: $Answer."


@pytest.mark.parametrize(
    ("question", "gold", "response", "reward"),
    [
        (HASHES, "4", "2 + 2 = 4\n#### 4", 1.0),
        (HASHES, "1234", "so\n#### $1,234.", 1.0),
        (HASHES, "4", "#### 3\nNo.\n#### 4", 1.0),
        (HASHES, "4", "#### 4\nNo.\n#### 3", 0.0),
        (HASHES, "4", r"#### 3 no, \boxed{4}", 1.0),
        (HASHES, "4", r"\boxed{4}", 1.0),
        (HASHES, "4", "#### Step 1: add\n2 + 2\n#### 4\n#### That is all", 1.0),
        (HASHES, "4", "the answer is 4", 0.0),
        (HASHES, "4", "####", 0.0),
        (ANSWER, "34", "I see.\nAnswer: 34", 1.0),
        (ANSWER, "34", "**Answer: $34$**", 1.0),
        (ANSWER, "34", "Answer: 35", 0.0),
        ("How many?", "Two and two.\n#### 4", "#### 4", 1.0),
        ("How many?", "Two and two.\n#### 4", r"\boxed{4}", 1.0),
        ("How many?", r"As $2+2=4$ it is $\boxed{4}$.", r"\boxed{4}", 1.0),
        ("How many?", "4", "#### 4", 0.0),
        ("How many?", "4", "Answer: 4", 0.0),
    ],
)
def test_the_form_that_the_question_asks_for_or_the_gold_answer_has_counts_beside_the_box(
    grader, question, gold, response, reward
):
    row = Prompt("p", ({"role": "user", "content": question},), "openai/gsm8k", gold)
    assert grader.check(row) is None
    assert grader.grade(row, response, False).reward == reward


def test_an_answer_behind_a_mark_that_was_cut_off_is_none(grader):
    row = Prompt("p", ({"role": "user", "content": HASHES},), "openai/gsm8k", "12")
    assert grader.grade(row, "#### 12", True).status is GradeStatus.TRUNCATED
    assert grader.grade(row, "#### 12\nAnd", True).reward == 1.0


def test_an_answer_in_no_form_is_told_which_one_is_asked_for(grader):
    row = Prompt("p", ({"role": "user", "content": HASHES},), "openai/gsm8k", "12")
    assert '"####"' in grader.grade(row, "twelve", False).feedback
    assert "boxed" in grade(grader, "twelve", "12").feedback
