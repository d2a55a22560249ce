"""An environment of your own: a wrong answer is shown what the grader says about it, and the model tries again.

    python examples/custom_environment.py [OVERRIDES...]       # trains the embedded model in it
    python -m sdpo.main_sdpo model=... data.train_files=[...] data.max_response_length=... \\
        actor_rollout_ref.rollout.environment.path=examples/custom_environment.py \\
        actor_rollout_ref.rollout.environment.name=SecondTry

Each episode gets an instance of its own; `rollout.environment.settings` are its arguments. What the model wrote is kept
as the engine saw it, and what the environment says in between is never trained on. `data.max_response_length` is the
room of the whole episode behind its prompt.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sdpo import main_sdpo
from sdpo.environments.episode import Episode, Grading, Policy
from sdpo.records import Prompt

SETTINGS = [
    f"actor_rollout_ref.rollout.environment.path={Path(__file__).resolve()}",
    "actor_rollout_ref.rollout.environment.name=SecondTry",
    "data.max_response_length=160",  # two answers, and what is said in between
    "trainer.total_training_steps=20",
    "trainer.project_name=custom_environment",
    "trainer.experiment_name=second-try",
    "trainer.default_local_dir=runs/custom_environment",
    "trainer.export_hf=false",
]


class SecondTry:
    """The last answer counts. Feedback is also tied to the turn that earned it: what the teacher is told just before
    that turn, and for that turn alone."""

    def __init__(self, tries: int = 2) -> None:
        self.tries = tries

    async def run(self, prompt: Prompt, policy: Policy, grade: Grading) -> Episode:
        answer = await policy.reply()
        verdict = await grade(answer)
        for _ in range(self.tries - 1):
            if answer.truncated or not verdict.feedback:  # nothing to say: right, cut off, or not to be graded
                break
            answer.feedback = verdict.feedback
            again = await policy.reply(verdict.feedback)
            if again.sequence < 0:  # no room was left
                break
            answer, verdict = again, await grade(again)
        return Episode(answer, verdict)


if __name__ == "__main__":
    sys.exit(main_sdpo.main([*SETTINGS, *sys.argv[1:]]))
