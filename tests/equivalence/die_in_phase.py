"""Runs `main_sdpo` and sends its own process a signal in the middle of a phase: `die_in_phase.py PHASE SIGNAL ARGS`."""

from __future__ import annotations

import os
import signal
import sys

from sdpo import main_sdpo
from sdpo.training import checkpoint, loop
from sdpo.workers.actor import Actor
from sdpo.workers.rollout import RolloutWorker

DEADLY_STEP = 3


def arm(phase: str, number: int) -> None:
    """The chosen function of step 3 does its work and then sends the signal, once."""
    step = {"now": 0}
    train_step = loop.TrainingLoop._train_step

    def watched(self, now: int) -> None:
        step["now"] = now
        train_step(self, now)

    loop.TrainingLoop._train_step = watched
    owner, name = {
        "rollout": (RolloutWorker, "_sample"),  # responses in flight
        "update": (Actor, "_backward"),  # gradients half accumulated
        "validate": (loop, "validate"),  # graded, not yet in the log
        "save": (checkpoint, "_sync_tree"),  # everything written, nothing renamed
    }[phase]
    real = getattr(owner, name)

    def deadly(*args, **kwargs):
        result = real(*args, **kwargs)
        if step["now"] == DEADLY_STEP:
            step["now"] = 0
            os.kill(os.getpid(), number)
        return result

    setattr(owner, name, deadly)


if __name__ == "__main__":
    arm(sys.argv[1], signal.Signals[sys.argv[2]])
    sys.exit(main_sdpo.main(sys.argv[3:]))
