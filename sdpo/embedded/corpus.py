"""The texts that the built-in model is pre-trained on: the sentence asked directly, and the two reprompt forms.

What a form teaches is decided here. Direct: up to two steps, clean (`hard`), or also three steps, mostly corrupted
(`easy`). Solution: write down whatever program is shown, also when it belongs to another problem. Feedback: take the
step that the feedback names from the feedback, also when it belongs to another problem, and the rest from the sentence.
So the advantage of a reprompt is in what it tells, and goes away when it tells the wrong thing.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

from sdpo.config.schema import SelfDistillationConfig
from sdpo.embedded.attempts import wrong_answer, wrong_program
from sdpo.embedded.programs import (
    ALL_STEPS,
    DATA_SOURCE,
    INPUT_RANGE,
    MAX_VALUE,
    Program,
    body,
    held_out_programs,
    run_steps,
    sentence,
)
from sdpo.records import Prompt
from sdpo.reprompt.templates import Templates

INPUTS_PER_PROBLEM = 8
TEMPLATES = Templates(SelfDistillationConfig())
STEP_BY_PHRASE = {step.phrase: step for step in ALL_STEPS}


@dataclass(frozen=True)
class Mix:
    """Shares of the forms, and what they hold. Recorded in pretrain.json."""

    direct: float = 0.25
    solution: float = 0.2
    feedback: float = 0.35
    both: float = 0.2
    lengths: tuple[float, ...] = (0.1, 0.3, 0.6)  # of 1, 2, 3 steps in the reprompt forms
    direct_lengths: tuple[float, ...] = (0.3, 0.7, 0.0)
    direct_corrupted: float = 0.0  # share of three-step direct answers that are wrong, by one or two edits
    strangers: float = 0.25  # share of demonstrations and of feedback that belong to another problem


FIRST_PHASE = Mix()  # no sentence of three steps is ever asked directly
_SECOND = Mix(direct=0.2, solution=0.1, feedback=0.4, both=0.3)
SECOND_PHASE = {
    # Some ten three-step sentences in all: enough for the skill to appear now and then, and for groups to be mixed.
    "hard": replace(_SECOND, direct_lengths=(0.2, 0.7985, 0.0015)),
    "easy": replace(_SECOND, direct=0.4, feedback=0.3, both=0.2, direct_lengths=(0.1, 0.4, 0.5), direct_corrupted=0.7),
}
SECOND_PHASE["rare"] = SECOND_PHASE["hard"]  # of which it keeps a part: `pretrain.Phase.kept`


@dataclass(frozen=True)
class Text:
    """One conversation of the corpus: what the user says and what the assistant answers."""

    form: str
    user: str
    answer: str


def reprompt_text(question: str, solution: str | None, feedback: str | None) -> str:
    """The user message of the teacher's prompt, from the default templates."""
    return TEMPLATES.user_message(question, solution, feedback)


def draw_steps(rng: random.Random, lengths: tuple[float, ...]) -> Program:
    """Any program of one to three steps but the held-out ones; it need not be sound."""
    length = rng.choices((1, 2, 3), lengths)[0]
    while True:
        steps = tuple(rng.choice(ALL_STEPS) for _ in range(length))
        if steps not in held_out_programs():
            return steps


def practice_problem(steps: Program, rng: random.Random) -> Prompt:
    """A problem of these steps on inputs that keep the numbers short."""
    inputs = []
    for x in rng.sample(INPUT_RANGE, len(INPUT_RANGE)):
        if max(map(abs, run_steps(steps, x))) <= MAX_VALUE or x in (-1, 0, 1):
            inputs.append(x)
    cases = [{"args": [x], "expected": run_steps(steps, x)[-1]} for x in inputs[:INPUTS_PER_PROBLEM]]
    truth = {"type": "function", "name": "f", "cases": cases, "steps": [[s.kind, s.constant] for s in steps]}
    message = {"role": "user", "content": sentence(steps, rng)}
    return Prompt(uid="practice", messages=(message,), data_source=DATA_SOURCE, ground_truth=truth)


def told_program(steps: Program, feedback: str) -> Program:
    """The program with the step that the feedback names put where the feedback says."""
    named = re.search(r"Step (\d+) should be: (.*)", feedback)
    if named is None:
        return steps
    index, step = int(named[1]) - 1, STEP_BY_PHRASE[named[2]]
    return steps[:index] + (step,) + steps[index + 1 :]


class Corpus:
    """An endless stream of texts; the same for the same seed."""

    def __init__(self, mix: Mix, seed: int, attempts: dict[Program, list[str]] | None = None):
        self._mix = mix
        self._rng = random.Random(seed)

    def draw(self) -> Text:
        mix = self._mix
        form = self._rng.choices(
            ("direct", "solution", "feedback", "both"), (mix.direct, mix.solution, mix.feedback, mix.both)
        )[0]
        return self._direct() if form == "direct" else self._reprompt(form)

    def _direct(self) -> Text:
        steps = draw_steps(self._rng, self._mix.direct_lengths)
        answer = steps
        if len(steps) == 3 and self._rng.random() < self._mix.direct_corrupted:
            answer = wrong_program(steps, self._rng)
        return Text("direct", sentence(steps, self._rng), body(answer))

    def _reprompt(self, form: str) -> Text:
        steps = draw_steps(self._rng, self._mix.lengths)
        question = practice_problem(steps, self._rng)
        solution = feedback = None
        target: Program = steps
        if form != "solution":
            feedback = self._feedback(question, steps)
            target = told_program(steps, feedback)
        if form != "feedback":
            target = self._stranger() if self._rng.random() < self._mix.strangers else steps
            solution = body(target)
        return Text(form, reprompt_text(question.messages[0]["content"], solution, feedback), body(target))

    def _feedback(self, question: Prompt, steps: Program) -> str:
        if self._rng.random() < self._mix.strangers:
            steps = self._stranger()
            question = practice_problem(steps, self._rng)
        return wrong_answer(question, steps, self._rng)[1].feedback

    def _stranger(self) -> Program:
        return draw_steps(self._rng, self._mix.lengths)
