"""The built-in task: a sentence such as "triple, then subtract 4, then absolute value" asks for the body of `f(x)`.

A *step* is one line of Python that changes `x`; a problem is a list of steps, its sentence, and hidden inputs on which
a program that differs gives a different answer. Everything is drawn from seeds: the same call, the same problems.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sdpo.errors import DataError, problem
from sdpo.records import Prompt

DATA_SOURCE = "programs"
FUNCTION = "f"
SPLITS = ("hard", "easy")
PARTS = ("train", "test")
PART_SIZES = {"train": 2000, "test": 200}
RUN_STEPS = 3  # steps of every problem of both parts
INPUT_RANGE = range(-30, 31)  # hidden inputs come from here
FIRST_INPUTS = 8  # drawn blindly; more are added until every near miss is told apart
MAX_VALUE = 99_999  # problems that reach more are not used: long numbers say nothing and cost tokens

_DIGITS = tuple(range(1, 10))
_FROM_TWO = tuple(range(2, 10))


@dataclass(frozen=True)
class Kind:
    """One kind of step: `code` and `phrases` may hold `{c}`, the step's constant."""

    name: str
    code: str
    apply: Callable[[int, int], int]  # (x, constant) -> x
    phrases: tuple[str, ...]  # the first is the one that feedback uses
    constants: tuple[int, ...] = (0,)  # (0,): the kind has none


KINDS = {
    kind.name: kind
    for kind in (
        Kind("add", "x = x + {c}", lambda x, c: x + c, ("add {c}", "increase by {c}", "plus {c}"), _DIGITS),
        Kind("subtract", "x = x - {c}", lambda x, c: x - c, ("subtract {c}", "decrease by {c}", "minus {c}"), _DIGITS),
        Kind("multiply", "x = x * {c}", lambda x, c: x * c, ("multiply by {c}", "times {c}"), _FROM_TWO),
        Kind(
            "divide",
            "x = x // {c}",
            lambda x, c: x // c,
            ("divide by {c} rounding down", "floor divide by {c}"),
            _FROM_TWO,
        ),
        Kind(
            "remainder", "x = x % {c}", lambda x, c: x % c, ("remainder modulo {c}", "modulo {c}"), tuple(range(4, 10))
        ),
        Kind("subtract_from", "x = {c} - x", lambda x, c: c - x, ("subtract from {c}", "take away from {c}"), _DIGITS),
        Kind("at_least", "x = max(x, {c})", lambda x, c: max(x, c), ("make at least {c}", "no less than {c}"), _DIGITS),
        Kind("at_most", "x = min(x, {c})", lambda x, c: min(x, c), ("make at most {c}", "no more than {c}"), _DIGITS),
        Kind("distance", "x = abs(x - {c})", lambda x, c: abs(x - c), ("distance to {c}", "how far from {c}"), _DIGITS),
        Kind("xor", "x = x ^ {c}", lambda x, c: x ^ c, ("xor with {c}", "exclusive or with {c}"), _DIGITS),
        Kind("or", "x = x | {c}", lambda x, c: x | c, ("bitwise or with {c}", "set the bits of {c}"), _DIGITS),
        Kind("negate", "x = -x", lambda x, c: -x, ("negate", "flip the sign")),
        Kind("absolute", "x = abs(x)", lambda x, c: abs(x), ("absolute value", "drop the sign")),
        Kind("square", "x = x * x", lambda x, c: x * x, ("square", "multiply by itself")),
        Kind("cube", "x = x ** 3", lambda x, c: x**3, ("cube", "raise to the third power")),
    )
}
# Ordinary words for one constant of a kind, beside the general phrases.
SPECIAL_PHRASES = {("multiply", 2): ("double",), ("multiply", 3): ("triple",), ("divide", 2): ("halve rounding down",)}
OPENINGS = ("Write the body of f(x): ", "Body of f(x): ", "Complete f(x): ", "f(x) is: ")
CONNECTORS = (", then ", " and then ", ", next ", "; ")


@dataclass(frozen=True)
class Step:
    """One step of a program. Example: Step("subtract", 4).code == "x = x - 4"."""

    kind: str
    constant: int = 0

    @property
    def code(self) -> str:
        return KINDS[self.kind].code.replace("{c}", str(self.constant))

    @property
    def phrase(self) -> str:
        return KINDS[self.kind].phrases[0].replace("{c}", str(self.constant))

    @property
    def phrases(self) -> tuple[str, ...]:
        general = tuple(text.replace("{c}", str(self.constant)) for text in KINDS[self.kind].phrases)
        return general + SPECIAL_PHRASES.get((self.kind, self.constant), ())

    def apply(self, x: int) -> int:
        return KINDS[self.kind].apply(x, self.constant)


Program = tuple[Step, ...]
ALL_STEPS: tuple[Step, ...] = tuple(Step(kind.name, c) for kind in KINDS.values() for c in kind.constants)


def body(steps: Sequence[Step]) -> str:
    """The program as the model writes it: one line per step and `return x`, not indented."""
    return "".join(f"{step.code}\n" for step in steps) + "return x"


def run_steps(steps: Sequence[Step], x: int) -> list[int]:
    """The value of x after each step, the input first: `len(steps) + 1` values."""
    values = [x]
    for step in steps:
        values.append(step.apply(values[-1]))
    return values


def sentence(steps: Sequence[Step], rng: random.Random) -> str:
    """One wording of the problem; opening, connectors and the phrase of each step are drawn."""
    connector = rng.choice(CONNECTORS)
    return rng.choice(OPENINGS) + connector.join(rng.choice(step.phrases) for step in steps)


def near_misses(steps: Program) -> Iterator[Program]:
    """Programs one edit away: a step left out, two neighbours swapped, a constant off by one, a kind confused."""
    for i, step in enumerate(steps):
        yield steps[:i] + steps[i + 1 :]
        if i:
            yield steps[: i - 1] + (step, steps[i - 1]) + steps[i + 1 :]
        for constant in (step.constant - 1, step.constant + 1):
            if constant in KINDS[step.kind].constants and len(KINDS[step.kind].constants) > 1:
                yield steps[:i] + (Step(step.kind, constant),) + steps[i + 1 :]
        for other in KINDS.values():
            if other.name != step.kind and (step.constant in other.constants or other.constants == (0,)):
                constant = step.constant if len(other.constants) > 1 else 0
                yield steps[:i] + (Step(other.name, constant),) + steps[i + 1 :]


def hidden_inputs(steps: Program, rng: random.Random) -> list[int]:
    """Inputs that tell the program from each near miss, except from those equal to it on all of INPUT_RANGE."""
    inputs = rng.sample(INPUT_RANGE, FIRST_INPUTS)
    answers = {x: run_steps(steps, x)[-1] for x in INPUT_RANGE}
    for other in near_misses(steps):
        if all(run_steps(other, x)[-1] == answers[x] for x in inputs):
            telling = [x for x in INPUT_RANGE if run_steps(other, x)[-1] != answers[x]]
            if telling:
                inputs.append(rng.choice(telling))
    return inputs


def _same_answers(steps: Program, answers: Sequence[int]) -> bool:
    return all(run_steps(steps, x)[-1] == answer for x, answer in zip(INPUT_RANGE, answers, strict=True))


def is_sound(steps: Program) -> bool:
    """Whether no step can be left out, the answer depends on x, and no value gets long."""
    states = [run_steps(steps, x) for x in INPUT_RANGE]
    answers = [values[-1] for values in states]
    if len(set(answers)) < 4 or max(abs(v) for values in states for v in values) > MAX_VALUE:
        return False
    shorter = (kept for length in range(len(steps)) for kept in itertools.combinations(steps, length))
    return not any(_same_answers(other, answers) for other in shorter)


def draw_program(rng: random.Random, length: int) -> Program:
    """A sound program: kinds uniform, then the constant uniform."""
    while True:
        kinds = [rng.choice(list(KINDS.values())) for _ in range(length)]
        steps = tuple(Step(kind.name, rng.choice(kind.constants)) for kind in kinds)
        if is_sound(steps):
            return steps


@functools.cache
def _part_programs() -> dict[str, tuple[Program, ...]]:
    """The programs of both parts. Drawn as one sequence without repeats, so the parts share none."""
    rng = random.Random("programs")
    seen: dict[Program, None] = {}
    while len(seen) < sum(PART_SIZES.values()):
        seen.setdefault(draw_program(rng, RUN_STEPS))
    programs = tuple(seen)
    return {"test": programs[: PART_SIZES["test"]], "train": programs[PART_SIZES["test"] :]}


def held_out_programs() -> frozenset[Program]:
    """Programs of the test part: pre-training leaves them out too."""
    return frozenset(_part_programs()["test"])


def make_prompt(uid: str, steps: Program, rng: random.Random) -> Prompt:
    """A problem as a row of data. The ground truth is plain JSON: {"type": "function", "name": "f",
    "cases": [{"args": [5], "expected": 11}, ...], "steps": [["multiply", 3], ...]}."""
    cases = [{"args": [x], "expected": run_steps(steps, x)[-1]} for x in hidden_inputs(steps, rng)]
    truth: dict[str, Any] = {
        "type": "function",
        "name": FUNCTION,
        "cases": cases,
        "steps": [[step.kind, step.constant] for step in steps],
    }
    message = {"role": "user", "content": sentence(steps, rng)}
    return Prompt(uid=uid, messages=(message,), data_source=DATA_SOURCE, ground_truth=truth)


def steps_of(prompt: Prompt) -> Program:
    """The intended steps of a problem; DataError when the row holds none."""
    try:
        steps = tuple(Step(kind, constant) for kind, constant in prompt.ground_truth["steps"])
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(
            problem(f"{prompt.uid}: ground_truth", prompt.ground_truth, "steps as [kind, constant] pairs")
        ) from error
    for step in steps:
        if step.kind not in KINDS:
            raise DataError(problem(f"{prompt.uid}: ground_truth.steps", step.kind, ", ".join(KINDS)))
    return steps


def problems(split: str = "hard", part: str = "train") -> list[Prompt]:
    """The problems of one part: 2,000 for `train`, 200 for `test`, three steps each, no program in both.

    The problems of `hard` and `easy` are the same: the settings differ in what the built-in model was pre-trained on.
    """
    if split not in SPLITS:
        raise DataError(problem("builtin://programs split", split, " | ".join(SPLITS)))
    if part not in PARTS:
        raise DataError(problem("builtin://programs part", part, " | ".join(PARTS)))
    rng = random.Random(f"programs-{part}")
    return [make_prompt(f"programs-{part}-{i}", steps, rng) for i, steps in enumerate(_part_programs()[part])]


# Address behind `builtin://` -> its prompts.
BUILTIN_PARTS = {
    f"{DATA_SOURCE}/{split}/{part}": functools.partial(problems, split, part) for split in SPLITS for part in PARTS
}
