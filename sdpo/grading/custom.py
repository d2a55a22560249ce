"""A reward function of the user's: a file and a name, with verl's signature."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdpo.errors import ConfigError, problem
from sdpo.records import Grade, GradeStatus, Prompt

from .feedback import FeedbackOptions, capped, clean

FIELD = "custom_reward_function"


class CustomFault(Exception):
    """The function raised, or returned something that is no reward: a fault of the grader."""


def load_function(path: str, name: str, field: str = FIELD) -> Callable[..., Any]:
    """A function or class of the file that `field` names. Raises ConfigError when it is not there."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(problem(f"{field}.path", path, "a Python file"))
    spec = importlib.util.spec_from_file_location(f"sdpo_file_of_{field.rpartition('.')[2]}", file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    try:
        sys.modules[spec.name] = module  # dataclasses look their module up
        # Not through the loader: its bytecode cache takes a file edited within a second for the old one.
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ConfigError(f"{field}.path: {path} cannot be imported: {told(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(problem(f"{field}.name", name, ", ".join(names) or f"a function of {path}"))
    return function


READ = {"reward", "score", "feedback", "passed_fraction"}  # of a dict; the other numbers of it are metrics


def told(error: BaseException) -> str:
    """One line of what the user's code raised."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}); raise an exception instead"
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


class CustomGrader:
    """Calls `function(data_source=, solution_str=, ground_truth=, extra_info=)`; it returns a number, a pair of
    number and feedback, or a dict with `reward` (or `score`) and optionally `feedback` and `passed_fraction`; what else
    it holds of numbers is logged. It runs in the grader process and has to be thread-safe."""

    def __init__(self, function: Callable[..., Any], options: FeedbackOptions) -> None:
        self.function = function
        self.options = options
        self.name = f"{FIELD} {getattr(function, '__name__', type(function).__name__)}"

    def check(self, prompt: Prompt) -> str | None:
        return None

    def grade(self, prompt: Prompt, answer: str, truncated: bool) -> Grade:
        try:
            result = self.function(
                data_source=prompt.data_source,
                solution_str=answer,
                ground_truth=prompt.ground_truth,
                extra_info={**prompt.extra_info, "truncated": truncated, "uid": prompt.uid},
            )
        except (Exception, SystemExit) as error:  # whatever it raises is the grader's fault, not the answer's
            raise CustomFault(f"{self.name}: {told(error)}") from error
        return self._to_grade(result)

    def _to_grade(self, result: Any) -> Grade:
        if isinstance(result, tuple) and len(result) == 2:
            result = {"reward": result[0], "feedback": result[1]}
        data = result if isinstance(result, dict) else {"reward": result}
        reward = _number(data.get("reward", data.get("score")))
        fraction = reward if "passed_fraction" not in data else _number(data["passed_fraction"])
        if reward is None or fraction is None:
            raise CustomFault(
                f"{self.name}: returned {result!r:.100}; allowed: a finite number, alone, with feedback, or in a dict"
            )
        feedback = data.get("feedback") or ""
        if not isinstance(feedback, str):
            raise CustomFault(f"{self.name}: feedback is {type(feedback).__name__}; allowed: text")
        status = GradeStatus.OK if reward >= 1.0 else GradeStatus.WRONG
        fraction = min(1.0, max(0.0, fraction))
        extra = {str(name): number for name in data.keys() - READ if (number := _number(data[name])) is not None}
        return Grade(status, reward, fraction, capped(clean(feedback), self.options.max_chars), extra=extra)


def _number(value: Any) -> float | None:
    """A finite number, of Python or NumPy, or a truth value; None for anything else. Text is never a number."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
