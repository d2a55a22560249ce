from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sdpo.config.compose import compose
from sdpo.config.validate import validate
from sdpo.grading.registry import build_grader
from sdpo.records import Prompt


@pytest.fixture(params=["compute_score", "closeness"])
def grader(request, repository: Path):
    path = repository / "examples/custom_grader.py"
    config = compose([f"custom_reward_function.path={path}", f"custom_reward_function.name={request.param}"])
    validate(config)
    built = build_grader(config)
    yield request.param, built
    built.close()


def grade(built, answer: str, gold: str = "1.5 km", truncated: bool = False):
    return built.grade(
        Prompt("u", ({"role": "user", "content": "q"},), "lengths", ground_truth=gold), answer, truncated
    )


def test_the_right_length_in_any_unit_has_reward_one_and_others_have_not(grader) -> None:
    name, built = grader
    for answer in ("1.5 km", "It is 1500 m.", "first 2 m, no: 150000 cm"):
        assert grade(built, answer).reward == 1.0
    for answer in ("1.5 m", "no idea", "2 hours", ""):
        assert grade(built, answer).reward < 0.1


def test_feedback_says_what_is_wrong_and_never_the_answer(repository: Path) -> None:
    built = build_grader(compose([f"custom_reward_function.path={repository}/examples/custom_grader.py"]))
    for answer, part in (
        ("1500 km", "not in km"),
        ("2 km", "too long"),
        ("1 km", "too short"),
        ("2 hours", "no unit of length"),
        ("no idea", "No length was found"),
    ):
        result = grade(built, answer)
        assert result.reward == 0.0 and part in result.feedback and "1.5" not in result.feedback
    assert "cut off" in grade(built, "the way", truncated=True).feedback
    built.close()


def test_it_runs_alone(repository: Path) -> None:
    run = subprocess.run(
        [sys.executable, "examples/custom_grader.py"], cwd=repository, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[0].split()[-1] == "1.0" and len(run.stdout.splitlines()) == 5
