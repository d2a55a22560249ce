"""A reward function of the user's, tried on rows before a run: what it is asked, what it says, what goes wrong."""

from __future__ import annotations

import io
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from sdpo.cli.gold_answers import NEVER_RIGHT
from sdpo.config.schema import Config
from sdpo.grading.source_grader import SourceGrader
from sdpo.grading.user_calls import LIMIT
from sdpo.grading.user_code import place_of_frame
from sdpo.records import Prompt

SLOW_STEP = 60.0  # seconds of a step that grading may take
HANGS = 3  # answers without an end after which no more are tried


@dataclass
class Trial:
    """What a function said of answers that were made from the rows."""

    rewards: dict[str, int] = field(default_factory=dict)  # reward, as text -> answers
    answers: int = 0
    seconds: float = 0.0
    rows: int = 0  # with an answer to write down
    told_apart: int = 0  # rows whose right answer got more than a wrong one
    hangs: int = 0
    printed: dict[str, int] = field(default_factory=dict)  # place -> lines

    @property
    def given_up(self) -> bool:
        return self.hangs >= HANGS

    def ask(self, prompt: Prompt, grader: SourceGrader) -> set[str]:
        """Has the answers graded; returns what went wrong."""
        right, wrong = answers(prompt)
        best: dict[bool, float] = {}
        faults: set[str] = set()
        for answer in (*right, *wrong):
            if self.given_up:
                break
            grade = grader.grade_or_status(prompt, answer, False)
            self.answers += 1
            self.seconds += grade.seconds
            if grade.reward is None:
                self.hangs += LIMIT in "".join(grade.flags)
                faults.add("; ".join(grade.flags))
                continue
            reward = f"{grade.reward:.4g}"
            self.rewards[reward] = self.rewards.get(reward, 0) + 1
            best[answer in right] = max(grade.reward, best.get(answer in right, grade.reward))
        self.rows += bool(right)
        self.told_apart += len(best) == 2 and best[True] > best[False]
        return faults

    def too_slow(self, config: Config) -> str | None:
        """Why a step would wait for it; None when it would not."""
        step = config.data.train_batch_size * config.actor_rollout_ref.rollout.n
        each = self.seconds / max(1, self.answers)
        seconds = each * step / config.grading.workers
        if seconds <= SLOW_STEP or self.hangs:
            return None
        workers = f"grading.workers={config.grading.workers}"
        return f"takes {each:.2g} s an answer: the {step} of a step take {seconds:.0f} s with {workers}; raise that"


def answers(prompt: Prompt) -> tuple[list[str], list[str]]:
    """(answers that ought to be right, wrong ones): the row's own in the usual spellings; and nothing at all."""
    truth = prompt.ground_truth
    solutions = [prompt.solution, prompt.extra_info.get("solution")]
    right = [text for text in solutions if isinstance(text, str) and text.strip()]
    if isinstance(truth, str | int | float) and not isinstance(truth, bool) and str(truth).strip():
        right += [str(truth), _spelled(str(truth))]
    return list(dict.fromkeys(right)), [_spelled(NEVER_RIGHT["math"]), ""]


def _spelled(answer: str) -> str:
    return f"<answer>{answer}</answer>\n\\boxed{{{answer}}}\n#### {answer}"


@contextmanager
def users_code(path: str | None) -> Iterator[Overheard]:
    """While it runs, what it prints is no output of the command, and it cannot end the process as if all were well."""
    overheard = Overheard(Path(path or ".").expanduser().resolve().parent)
    if path is None:
        yield overheard
        return

    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    ends, os._exit = os._exit, leave
    try:
        with redirect_stdout(overheard):
            yield overheard
    finally:
        os._exit = ends


class Overheard(io.TextIOBase):
    """Takes the place of standard output while a user's code runs: passes it on to standard error and notes the places
    that print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: Counter[str] = Counter()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        where = place_of_frame(sys._getframe(1), self.folder) if text.strip() else None
        if where is not None:
            self.places[where] += 1
        return sys.stderr.write(text)
