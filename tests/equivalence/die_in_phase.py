"""Runs `main_sdpo` and kills its own process with SIGKILL in the middle of a phase: `die_in_phase.py PHASE ARGS...`."""

from __future__ import annotations

import os
import signal
import sys

from sdpo import main_sdpo
from sdpo.training import checkpoint, loop
from sdpo.workers.actor import Actor
from sdpo.workers.rollout import RolloutWorker

DEADLY_STEP = 3


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(phase: str) -> None:
    """The chosen function of step 3 does its work and then kills the process."""
    step = {"now": 0}
    train_step = loop.TrainingLoop._train_step

    def watched(self, number: int) -> None:
        step["now"] = number
        train_step(self, number)

    loop.TrainingLoop._train_step = watched
    owner, name = {
        "rollout": (RolloutWorker, "_sample"),  # responses in flight
        "update": (Actor, "_backward"),  # gradients half accumulated
        "save": (checkpoint, "_sync_tree"),  # everything written, nothing renamed
    }[phase]
    real = getattr(owner, name)

    def deadly(*args, **kwargs):
        result = real(*args, **kwargs)
        if step["now"] == DEADLY_STEP:
            die()
        return result

    setattr(owner, name, deadly)


if __name__ == "__main__":
    arm(sys.argv[1])
    sys.exit(main_sdpo.main(sys.argv[2:]))
