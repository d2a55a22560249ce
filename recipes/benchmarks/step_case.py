"""What the benchmarks of a whole step have in common: prompts, shape, settings, and how worker processes take turns."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path

PROMPTS = (
    "A baker sells 17 loaves in the morning and three times as many in the afternoon. Each loaf costs 4 dollars. How"
    " much money does she take in on that day? Explain each step and give the result in the last line.",
    "A train leaves at 9:40 and needs 2 hours and 35 minutes to the sea. On the way it stands still for 20 minutes. At"
    " what time does it arrive? Explain each step and give the result in the last line.",
    "Tom has 48 marbles. He gives a quarter of them to Ann and a third of the rest to Ben, and loses five on his way"
    " home. How many marbles are left? Explain each step and give the result in the last line.",
    "A garden is 12 metres long and 9 metres wide. A path of one metre runs around it on the outside. What is the area"
    " of the path in square metres? Explain each step and give the result in the last line.",
)
FEEDBACK = (
    "Wrong answer. The afternoon alone is 51 loaves; morning and afternoon have to be added before the price.",
    "Wrong answer. The stop has to be added to the time of travel, and 60 minutes are one hour.",
    "Wrong answer. The third is taken of what is left after the first gift, not of all marbles.",
    "Wrong answer. The outer rectangle is two metres longer and two metres wider than the garden.",
)
RESPONSES = 4  # per prompt
RESPONSE_TOKENS = 64
TOP_K, ALPHA, RATE, LEARNING_RATE = 100, 0.5, 0.05, 1e-6
MODEL = "models/smollm2-135m"


WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def waiting() -> dict[str, str | None]:
    """How threads wait for each other."""
    return {name: os.environ.get(name) for name in WAITING}


class PhaseClock:
    """Seconds by phase since the last `take`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def wrap(self, owner: object, name: str, phase: str) -> None:
        """Times every call of a method of one object from now on."""
        inner = getattr(owner, name)

        @wraps(inner)
        def timed(*arguments: object, **options: object) -> object:
            with self(phase):
                return inner(*arguments, **options)

        setattr(owner, name, timed)

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, {}
        return taken


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def resident(field: str) -> int:
    """Bytes of VmRSS, held now, or VmHWM, the most that this process ever held."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def say(record: dict) -> None:
    print("STEP " + json.dumps(record), flush=True)


def heard(line: str) -> dict | None:
    """A record of a worker process; None for anything else that it printed."""
    return json.loads(line.removeprefix("STEP ")) if line.startswith("STEP ") else None


def worker_options(description: str) -> argparse.Namespace:
    """What `step.py` tells the worker processes of other programs."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def serve(step: Callable[[], dict]) -> None:
    """One step per line on standard input, until it ends."""
    say({"ready": True})
    for _ in sys.stdin:
        say(step())
