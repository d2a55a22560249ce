"""A right and a wrong response to a row, written from its ground truth: what a grader must call right and wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sdpo.errors import DataError
from sdpo.grading.registry import kind_of
from sdpo.records import Prompt

NEVER_RIGHT = {"math": "\\boxed{-987654321}", "code": "```python\npass\n```"}


@dataclass(frozen=True)
class Pair:
    """Responses as a policy would write them."""

    right: str
    wrong: str


def responses(prompt: Prompt) -> Pair | None:
    """None when the row does not hold its answer: tests without a solution (`extra_info.solution`), a rubric, a source
    that only a function of the user's grades. The ground truth has passed the grader's own check."""
    truth = prompt.ground_truth
    try:
        kind = kind_of(prompt.data_source)
    except DataError:
        return None
    match kind:
        case "math":
            return Pair(f"\\boxed{{{truth}}}", NEVER_RIGHT["math"])
        case "multiple_choice":
            return _letters(truth)
        case "tool_calls":
            return _calls(json.loads(truth) if isinstance(truth, str) else truth)
        case "code":
            solution = prompt.extra_info.get("solution")
            return Pair(f"```python\n{solution}\n```", NEVER_RIGHT["code"]) if isinstance(solution, str) else None
        case "text" if isinstance(truth, str):
            return Pair(truth, f"not {truth}")
    return None


def _letters(truth: Any) -> Pair:
    answer = truth.get("answer") if isinstance(truth, dict) else truth
    place = answer if isinstance(answer, int) else ord(answer.strip().strip("().").upper()) - ord("A")
    other = place - 1 if place else place + 1
    return Pair(*(f"<answer>{chr(ord('A') + i)}</answer>" for i in (place, other)))


def _calls(calls: list[dict[str, Any]]) -> Pair:
    def lines(prefix: str) -> str:
        return "\n".join(
            f"Action: {prefix}{call['name']}\nAction Input: {json.dumps(call['arguments'])}" for call in calls
        )

    return Pair(lines(""), lines("not_"))
