"""Reward functions of the user's: a file and a name, or several names with weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sdpo.config.schema import CustomRewardFunctionConfig
from sdpo.errors import ConfigError
from sdpo.records import Grade, GradeStatus, Prompt

from .feedback import FeedbackOptions, capped, clean
from .user_calls import VERL, CustomFault, RewardCall
from .user_code import load_functions

FIELD = "custom_reward_function"
READ = {"reward", "score", "feedback", "passed_fraction"}  # of a dict; the rest of it is logged
LONGEST = 500  # characters of a further value that is no number


def load_calls(settings: CustomRewardFunctionConfig, strict: bool = False) -> dict[str, RewardCall]:
    """The functions by name. Raises ConfigError for what cannot be imported or called."""
    assert settings.path is not None
    names = list(settings.weights) or [settings.name]
    found = load_functions(settings.path, names, FIELD)
    try:
        return {
            name: RewardCall(function, name, settings.reward_kwargs, settings.max_seconds, strict)
            for name, function in found.items()
        }
    except ConfigError as error:
        raise ConfigError(f"{FIELD}.name: {error}") from error


@dataclass(frozen=True)
class Verdict:
    """What one function says of an answer. `reward` None: it has nothing to say of such rows."""

    reward: float | None
    feedback: str = ""
    passed_fraction: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class CustomGrader:
    """Adds up what its functions say. Each returns a number, a pair of number and feedback, or a dict with `reward` (or
    `score`) and optionally `feedback` and `passed_fraction`; what else it holds is logged. They run in threads of the
    grader process."""

    def __init__(self, calls: Mapping[str, RewardCall], weights: Mapping[str, float], options: FeedbackOptions) -> None:
        self.calls, self.weights, self.options = calls, weights, options

    def check(self, prompt: Prompt) -> str | None:
        for name, call in self.calls.items():
            if missing := call.missing(prompt):
                raise ConfigError(f"{FIELD} {name}: {missing}")
        return None

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        verdicts = {name: self._ask(name, prompt, answer, truncated) for name in self.calls}
        rewards = {name: verdict.reward for name, verdict in verdicts.items() if verdict.reward is not None}
        if not rewards:
            raise CustomFault(f"{FIELD} {', '.join(verdicts)}: returned None, no reward for this row")
        # (fsum: 0.7 + 0.2 + 0.1 is below 1 otherwise)
        reward = math.fsum(self.weights.get(name, 1.0) * value for name, value in rewards.items())
        fractions = [verdict.passed_fraction for verdict in verdicts.values() if verdict.passed_fraction is not None]
        fraction = sum(fractions) / len(fractions) if fractions else reward
        extra = {name: value for verdict in verdicts.values() for name, value in verdict.extra.items()}
        feedback = "\n".join(verdict.feedback for verdict in verdicts.values() if verdict.feedback.strip())
        return Grade(
            GradeStatus.OK if reward >= 1.0 else GradeStatus.WRONG,
            reward,
            min(1.0, max(0.0, fraction)),
            capped(clean(feedback), self.options.max_chars),
            extra=extra | (rewards if len(self.calls) > 1 else {}),
        )

    def _ask(self, name: str, prompt: Prompt, answer: str, truncated: bool) -> Verdict:
        call = self.calls[name]
        try:
            result = call(prompt, answer, truncated)
        except CustomFault as error:
            raise CustomFault(f"{FIELD} {name}: {error}") from error
        # Of several, one may have nothing to say; a plain None is a function that forgot to return.
        optional = len(self.calls) > 1 and (call.kind is not VERL or isinstance(result, dict))
        if (wrong := _wrong(result, optional)) is None:
            return _verdict(result)
        where = call.place_of_return(prompt, answer, truncated)
        raise CustomFault(f"{FIELD} {name}: {where}: {wrong}")

    def close(self) -> None:
        for call in self.calls.values():
            call.close()


def _as_dict(result: Any) -> dict[Any, Any]:
    if isinstance(result, tuple) and len(result) == 2:
        return {"reward": result[0], "feedback": result[1]}
    return result if isinstance(result, dict) else {"reward": result}


def _wrong(result: Any, optional: bool) -> str | None:
    """What is wrong with what a function returned; None when it can be used."""
    data = _as_dict(result)
    reward = data.get("reward", data.get("score"))
    if reward is None and optional and ("reward" in data or "score" in data):
        return None
    allowed = "a finite number, alone, with feedback, or in a dict"
    if number(reward) is None or ("passed_fraction" in data and number(data["passed_fraction"]) is None):
        return f"returned {result!r:.100}; allowed: {allowed} as reward or score"
    if not isinstance(data.get("feedback") or "", str):
        return f"feedback is {type(data['feedback']).__name__}; allowed: text"
    return None


def _verdict(result: Any) -> Verdict:
    data = _as_dict(result)
    extra = {str(name): _logged(value) for name, value in data.items() if name not in READ and value is not None}
    fraction = number(data["passed_fraction"]) if "passed_fraction" in data else None
    return Verdict(number(data.get("reward", data.get("score"))), data.get("feedback") or "", fraction, extra)


def _logged(value: Any) -> Any:
    """A number, for the metrics; else text, for the samples."""
    if (plain := number(value)) is not None:
        return plain
    try:
        return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr))[:LONGEST]
    except (TypeError, ValueError, RecursionError):  # keys that are no text, circles
        return repr(value)[:LONGEST]


def number(value: Any) -> float | None:
    """A finite number, of Python or NumPy, or a truth value; None for anything else. Text is never a number."""
    if isinstance(value, str | bytes):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
