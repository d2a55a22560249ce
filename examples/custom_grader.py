"""A reward function of your own: quantities such as "12 km", with feedback that says which part is wrong.

    python examples/custom_grader.py        # what it says about a few answers
    python -m sdpo.main_sdpo model=... data.train_files=[...] custom_reward_function.path=examples/custom_grader.py

The function replaces the graders of all rows. It is called as in verl, with keyword arguments only, from several
threads at once, in a grader process: no state, no network without a time limit, and never `eval` or `exec` of what a
model wrote (the sandboxed graders do that). What it raises counts as a failure of the grader, not of the answer.
"""

from __future__ import annotations

import re
from typing import Any

METRES = {"mm": 0.001, "cm": 0.01, "m": 1.0, "km": 1000.0}
QUANTITY = re.compile(r"(-?\d+(?:\.\d+)?)\s*([a-z]+)\b")


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
) -> dict[str, float | str]:
    """Reward 1 for the right length in any unit; otherwise feedback for the teacher.

    Args:
        data_source: the row's, to grade several kinds of rows in one function.
        solution_str: the response without its thinking.
        ground_truth: `reward_model.ground_truth` of the row, here text such as "1.5 km".
        extra_info: the row's, and `truncated`: whether the response was cut at the length limit.

    Returns `reward` and `feedback` (text that names the fault and not the answer; "" when there is nothing to say).
    `passed_fraction` may say how close it came; it is logged beside the reward.
    """
    found = QUANTITY.findall(solution_str.lower())
    if not found:
        cut = "The response was cut off before it." if extra_info["truncated"] else "Write a number and a unit."
        return {"reward": 0.0, "feedback": f"No length was found. {cut}"}
    number, unit = found[-1]
    if unit not in METRES:
        return {"reward": 0.0, "feedback": f"{unit!r} is no unit of length; use {', '.join(METRES)}."}
    right = _metres(*QUANTITY.findall(ground_truth)[-1])
    given = _metres(number, unit)
    if abs(given - right) <= 1e-6 * abs(right):
        return {"reward": 1.0, "feedback": "", "passed_fraction": 1.0}
    ratio = given / right if right else 0.0
    if any(abs(ratio * factor - 1) < 1e-6 for factor in (0.001, 0.01, 0.1, 10.0, 100.0, 1000.0)):
        return {"reward": 0.0, "feedback": f"The digits are right, but not in {unit}.", "passed_fraction": 0.5}
    return {"reward": 0.0, "feedback": f"{number} {unit} is too {'long' if given > right else 'short'}."}


def closeness(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """The shortest form: a number and no feedback (`custom_reward_function.name=closeness`)."""
    found = QUANTITY.findall(solution_str.lower())
    if not found or found[-1][1] not in METRES:
        return 0.0
    right = _metres(*QUANTITY.findall(ground_truth)[-1])
    return max(0.0, 1.0 - abs(_metres(*found[-1]) - right) / abs(right))


def _metres(number: str, unit: str) -> float:
    return float(number) * METRES[unit]


if __name__ == "__main__":
    for answer in ("The way is 1500 m long.", "It is 1500 km.", "About 2 km", "2 hours", "I do not know."):
        verdict = compute_score("lengths", answer, "1.5 km", {"truncated": False})
        print(f"{answer:26} {verdict['reward']}  {verdict['feedback']}")
