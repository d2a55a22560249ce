"""A right and a wrong response to a row, written from its ground truth: what a grader must call right and wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sdpo.errors import DataError
from sdpo.grading import mathematics, multiple_choice, text_match, tool_calls
from sdpo.grading.registry import kind_of
from sdpo.records import Prompt

NEVER_RIGHT = {"math": "-987654321", "code": "```python\npass\n```"}


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
            form = next(iter(mathematics.forms_of(prompt)), None)
            answers = (mathematics.read_gold(truth), NEVER_RIGHT["math"])
            return Pair(*(f"{form} {answer}" if form else f"\\boxed{{{answer}}}" for answer in answers))
        case "multiple_choice":
            choice = multiple_choice.read_gold(truth)
            return Pair(*(f"<answer>{c}</answer>" for c in (choice[0], _other(choice[0])))) if choice else None
        case "tool_calls":
            calls = tool_calls.read_gold(truth)
            return _lines(calls) if calls else None
        case "code":
            solution = prompt.extra_info.get("solution")
            return Pair(f"```python\n{solution}\n```", NEVER_RIGHT["code"]) if isinstance(solution, str) else None
        case "text":
            target = text_match.read_gold(truth)
            return Pair(target.text, f"not {target.text}") if target and not target.is_pattern else None
    return None


def _other(letter: str) -> str:
    """B beside A, else the letter before: one that every question has, however few its choices."""
    return "B" if letter == "A" else chr(ord(letter) - 1)


def _lines(calls: list[tool_calls.Call]) -> Pair:
    def written(prefix: str) -> str:
        return "\n".join(f"Action: {prefix}{call.name}\nAction Input: {json.dumps(call.arguments)}" for call in calls)

    return Pair(written(""), written("not_"))
