from __future__ import annotations

import asyncio
import math

import pytest

from sdpo.config.schema import CustomRewardFunctionConfig
from sdpo.errors import ConfigError
from sdpo.grading.custom import FIELD, CustomGrader, load_calls
from sdpo.grading.feedback import FeedbackOptions
from sdpo.grading.text_match import TextGrader
from sdpo.grading.user_calls import CustomFault
from sdpo.grading.user_code import load_function
from sdpo.records import GradeStatus, Prompt


def prompt(gold, source="exact"):
    return Prompt("p1", ({"role": "user", "content": "?"},), source, gold, extra_info={"k": 1})


def text_grade(response, gold):
    return TextGrader().grade(prompt(gold), response, False)


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("Paris", "Paris"),
        ("  the   Seine \n", "the Seine"),
        ("I say <answer>Paris</answer>", "Paris"),
        ("PARIS", {"exact": "paris", "ignore_case": True}),
        ("a-42", {"regex": r"[a-z]-\d+"}),
        ("A-42", {"regex": r"[a-z]-\d+", "ignore_case": True}),
    ],
)
def test_a_matching_text_is_right(response, gold):
    assert text_grade(response, gold).reward == 1.0


@pytest.mark.parametrize(
    ("response", "gold"), [("paris", "Paris"), ("in Paris", "Paris"), ("xa-42", {"regex": r"[a-z]-\d+"})]
)
def test_another_text_is_wrong(response, gold):
    assert text_grade(response, gold).status is GradeStatus.WRONG


@pytest.mark.parametrize(("response", "reward"), [("<answer>The Eiffel Tower.</answer>", 1.0), ("Paris", 0.0)])
def test_one_of_several_spellings_is_right_whatever_its_case_articles_and_punctuation(response, reward):
    assert text_grade(response, {"target": ["tour Eiffel", "eiffel tower"]}).reward == reward


@pytest.mark.parametrize("gold", ["", None, {"target": []}, {"target": [" "]}, {"regex": "("}, {"exact": ""}, 5, {}])
def test_a_gold_text_that_cannot_be_used_is_never_rewarded(gold):
    assert text_grade("x", gold).status is GradeStatus.INVALID_GOLD


def test_a_pattern_that_explodes_is_given_up_and_wrong():
    """Backtracking would take longer than the test run may: 2 to the power of 5,000 ways."""
    assert text_grade("a" * 5000 + "b", {"regex": r"(a+)+c"}).reward == 0.0


def write_function(tmp_path, body, name="compute_score"):
    path = tmp_path / "reward.py"
    path.write_text(f"def {name}(data_source, solution_str, ground_truth, extra_info):\n    {body}\n")
    return str(path)


def custom_grade(tmp_path, body):
    calls = load_calls(CustomRewardFunctionConfig(write_function(tmp_path, body)))
    return CustomGrader(calls, {}, FeedbackOptions()).grade(prompt("gold"), "answer", False)


def test_a_custom_function_may_return_a_number(tmp_path):
    result = custom_grade(tmp_path, "return 0.25")
    assert (result.reward, result.status, result.passed_fraction) == (0.25, GradeStatus.WRONG, 0.25)
    assert custom_grade(tmp_path, "return True").status is GradeStatus.OK


def test_a_custom_function_may_return_reward_and_feedback(tmp_path):
    result = custom_grade(
        tmp_path, "return {'score': 0, 'feedback': f'{data_source} {extra_info[\"uid\"]} <|im_end|>'}"
    )
    assert result.reward == 0.0
    assert result.feedback == "exact p1 < |im_end|>"


def test_a_custom_function_may_return_a_pair_and_a_numpy_scalar(tmp_path):
    result = custom_grade(tmp_path, "return 0.5, 'half of it'")
    assert (result.reward, result.feedback) == (0.5, "half of it")
    assert custom_grade(tmp_path, "import numpy; return numpy.float32(0.5)").reward == 0.5
    assert custom_grade(tmp_path, "import numpy; return numpy.int64(1)").status is GradeStatus.OK
    assert custom_grade(tmp_path, "import numpy; return numpy.bool_(True)").status is GradeStatus.OK


def test_a_custom_file_may_define_dataclasses(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass R:\n    x: float\n\n"
        "def compute_score(**_):\n    return R(1.0).x\n"
    )
    assert load_function(str(path), "compute_score", FIELD)() == 1.0


@pytest.mark.parametrize(
    "body",
    [
        "return None",
        "return float('nan')",
        "return '1.0'",
        "return 10**400",
        "return {'feedback': 'x'}",
        "return {'reward': 1.0, 'passed_fraction': None}",
        "raise ValueError('bug')",
    ],
)
def test_a_custom_function_that_fails_is_never_a_zero(tmp_path, body):
    with pytest.raises(CustomFault):
        custom_grade(tmp_path, body)


def test_a_missing_file_or_function_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="custom_reward_function.path"):
        load_function(str(tmp_path / "no.py"), "compute_score", FIELD)
    with pytest.raises(ConfigError, match="compute_score"):
        load_function(write_function(tmp_path, "return 1", "other"), "compute_score", FIELD)
    (tmp_path / "bad.py").write_text("import nothing_like_this")
    with pytest.raises(ConfigError, match="cannot be imported"):
        load_function(str(tmp_path / "bad.py"), "f", FIELD)


def test_rewards_may_exceed_one(tmp_path):
    result = custom_grade(tmp_path, "return 2.5")
    assert (result.reward, result.status) == (2.5, GradeStatus.OK)
    assert math.isclose(result.passed_fraction, 1.0)


def test_a_custom_function_that_exits_is_one_line_with_its_name(tmp_path):
    for body, words in (
        ("import sys; sys.exit(3)", "calls sys.exit(3)"),
        ("raise SystemExit('a\\nb')", "calls sys.exit"),
    ):
        with pytest.raises(CustomFault, match="custom_reward_function compute_score") as caught:
            custom_grade(tmp_path, body)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "bad.py").write_text("import sys\nsys.exit(1)")
    with pytest.raises(
        ConfigError, match=r"cannot be imported: .*bad.py line 2: `sys.exit\(1\)`: it calls sys.exit\(1\)"
    ):
        load_function(str(tmp_path / "bad.py"), "f", FIELD)


def test_a_run_whose_reward_function_exits_is_not_ended_by_it(tmp_path):
    from sdpo.config.schema import Config
    from sdpo.workers.grader import ThreadGraderPool

    config = Config()
    config.custom_reward_function.path = write_function(tmp_path, "import sys; sys.exit(3)")
    pool = ThreadGraderPool(config)
    grade = asyncio.run(pool.grade(prompt("gold"), "answer", False))
    pool.close()
    assert (grade.status, grade.reward) == (GradeStatus.INFRA_ERROR, None)
    assert "reward.py line 2: `import sys; sys.exit(3)`: it calls sys.exit(3)" in grade.flags[0]


@pytest.mark.parametrize("leaves", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_an_awaited_function_that_leaves_once_is_asked_again_on_the_same_loop(tmp_path, leaves):
    path = tmp_path / "reward.py"
    path.write_text(
        f"async def compute_score(solution_str):\n    if solution_str == '':\n        {leaves}\n    return 1"
    )
    grader = CustomGrader(load_calls(CustomRewardFunctionConfig(str(path))), {}, FeedbackOptions())
    with pytest.raises(CustomFault, match=f"reward.py line 3: `{leaves}`".replace("(", r"\(").replace(")", r"\)")):
        grader.grade(prompt("gold"), "", False)
    assert grader.grade(prompt("gold"), "answer", False).reward == 1.0
    grader.close()


def test_a_signal_while_an_answer_is_awaited_is_no_fault_of_the_function(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(
        "import asyncio, signal, threading\nasync def compute_score(solution_str):\n"
        "    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n    await asyncio.sleep(50)\n"
    )
    grader = CustomGrader(load_calls(CustomRewardFunctionConfig(str(path))), {}, FeedbackOptions())
    with pytest.raises(KeyboardInterrupt):
        grader.grade(prompt("gold"), "answer", False)
    grader.close()


@pytest.mark.parametrize("parts", [[7, 2, 1], [6, 3, 1], [1] * 10, [1] * 3 + [3, 4]])
def test_weights_of_one_in_all_make_an_answer_right_that_all_functions_hold_for_right(tmp_path, parts):
    names = [f"part_{number}" for number in range(len(parts))]
    path = tmp_path / "reward.py"
    path.write_text("".join(f"def {name}(solution_str):\n    return 1\n" for name in names))
    weights = {name: part / 10 for name, part in zip(names, parts, strict=True)}
    settings = CustomRewardFunctionConfig(str(path), weights=weights)
    grade = CustomGrader(load_calls(settings), weights, FeedbackOptions()).grade(prompt("gold"), "answer", False)
    assert (grade.reward, grade.status, grade.passed_fraction) == (1.0, GradeStatus.OK, 1.0)
