"""Wrong answers to the built-in task, and the grade they get, without a sandbox: every line is a known step."""

from __future__ import annotations

import random
from collections.abc import Callable

from sdpo.embedded.grader import FunctionRun, recognised_steps, refusal, verdict
from sdpo.embedded.programs import ALL_STEPS, KINDS, Program, Step, body, run_steps
from sdpo.records import Grade, Prompt

MAX_ATTEMPT = 6  # steps; more could make numbers too long to compute


def leave_out(steps: Program, rng: random.Random) -> Program:
    i = rng.randrange(len(steps))
    return steps[:i] + steps[i + 1 :]


def _swap(steps: Program, rng: random.Random) -> Program:
    if len(steps) < 2:
        return steps
    i = rng.randrange(len(steps) - 1)
    return steps[:i] + (steps[i + 1], steps[i]) + steps[i + 2 :]


def _change_constant(steps: Program, rng: random.Random) -> Program:
    i = rng.randrange(len(steps))
    return steps[:i] + (Step(steps[i].kind, rng.choice(KINDS[steps[i].kind].constants)),) + steps[i + 1 :]


def _change_step(steps: Program, rng: random.Random) -> Program:
    i = rng.randrange(len(steps))
    return steps[:i] + (rng.choice(ALL_STEPS),) + steps[i + 1 :]


def _confuse_kind(steps: Program, rng: random.Random) -> Program:
    i = rng.randrange(len(steps))
    constant = steps[i].constant
    others = [k for k in KINDS.values() if constant in k.constants or constant == 0 or k.constants == (0,)]
    kind = rng.choice(others)
    constant = constant if constant in kind.constants else rng.choice(kind.constants)
    return steps[:i] + (Step(kind.name, constant),) + steps[i + 1 :]


def _repeat(steps: Program, rng: random.Random) -> Program:
    i = rng.randrange(len(steps))
    return steps[:i] + (steps[i],) + steps[i:]


def _stop_early(steps: Program, rng: random.Random) -> Program:
    return steps[: rng.randrange(len(steps))]


# What a model that has learnt one and two steps does on three, most of all: it leaves one out.
EDITS: tuple[tuple[Callable[[Program, random.Random], Program], float], ...] = (
    (leave_out, 5.0),
    (_stop_early, 1.0),
    (_swap, 1.0),
    (_change_constant, 1.5),
    (_change_step, 1.0),
    (_confuse_kind, 1.5),
    (_repeat, 0.7),
)


def wrong_program(steps: Program, rng: random.Random) -> Program:
    """A program one or two edits away, never the same steps."""
    edits, weights = zip(*EDITS, strict=True)
    while True:
        attempt = steps
        for edit in rng.choices(edits, weights, k=2 if rng.random() < 0.35 else 1):
            attempt = edit(attempt, rng) if attempt else attempt
        if attempt != steps:
            return attempt


def replayed_runs(prompt: Prompt, response_text: str) -> list[FunctionRun] | None:
    """What the sandbox would report for an answer of known steps; None when a line is anything else."""
    steps, returned = recognised_steps(response_text)
    known = [step for step in steps if step is not None]
    if not returned or len(known) < len(steps) or len(steps) > MAX_ATTEMPT:
        return None
    return [FunctionRun(run_steps(known, case["args"][0])[-1]) for case in prompt.ground_truth["cases"]]


def replayed_grade(prompt: Prompt, response_text: str, truncated: bool = False) -> Grade | None:
    """The grade that `ProgramsGrader` gives, computed without a sandbox; None when that takes running the answer."""
    refused = refusal(prompt, response_text, truncated)
    if refused is not None:
        return refused
    runs = replayed_runs(prompt, response_text)
    return None if runs is None else verdict(prompt, response_text, runs)


def wrong_answer(prompt: Prompt, steps: Program, rng: random.Random) -> tuple[str, Grade]:
    """A wrong answer to a problem with its grade; retried until it really fails."""
    while True:
        text = body(wrong_program(steps, rng))
        grade = replayed_grade(prompt, text)
        if grade is not None and grade.reward == 0.0:
            return text, grade
