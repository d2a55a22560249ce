"""Runs for a comparison: the same overrides and seeds for every arm, each to the end of its budget.

A run is an ordinary `python -m sdpo.main_sdpo`. With a budget it is interrupted at the first validation that has used
it up. A folder that has spent its budget, or has finished, is not run again: a broken-off comparison goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import NamedTuple

from sdpo.errors import ConfigError, DataError, SdpoError
from sdpo.reporting.comparison.curves import UNLIMITED, Budget, curve_of, load_curve
from sdpo.reporting.comparison.summary import best_rate
from sdpo.tracking.history import METRICS_FILE, RunHistory
from sdpo.tracking.jsonl import write_atomically

POLL_S = 0.5
STOP_S = 60.0  # from the interrupt to the end of the process
ENDLESS = 1_000_000  # steps, where the budget ends the run
# What may differ between a run that is there and the one that is wanted: how long it goes on, and its own place.
MAY_DIFFER = ("trainer.total_training_steps=", "trainer.total_epochs=", "trainer.default_local_dir=")


@dataclass(frozen=True)
class Arm:
    """One algorithm: a root configuration and overrides of its own, written `ROOT` or `ROOT:KEY=VALUE,KEY=VALUE`."""

    root: str
    overrides: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Arm:
        root, _, rest = text.partition(":")
        return cls(root, tuple(part for part in rest.split(",") if part))


@dataclass(frozen=True)
class Plan:
    """What to run. `source`: the data source whose accuracy counts; None: all of the held-out set.

    With several rates each is tried once, on `tuning_seed` and with the overrides of `tuning`; the best of each arm is
    measured on `seeds`. So no reported number helped to choose the rate that it was made with."""

    arms: Sequence[Arm]
    overrides: Sequence[str]
    seeds: Sequence[int]
    rates: Sequence[str]  # learning rates, as written; none: the configuration's
    budget: Budget
    out: Path
    source: str | None = None
    tuning_seed: int = -1
    tuning: Sequence[str] = ()  # overrides of the tuning runs alone: held-out problems of their own
    jobs: int = 1
    say: Callable[[str], None] = field(default=print)
    stop: threading.Event = field(default_factory=threading.Event)  # set: running ones are interrupted


class Trial(NamedTuple):
    """One run. `tuning`: it only helps to choose the rate."""

    arm: Arm
    rate: str  # "": the configuration's
    seed: int
    tuning: bool = False


def run_all(plan: Plan) -> tuple[list[Path], list[Path]]:
    """Returns the run folders: those to report, and those that the rates were chosen by (none with one rate).

    Raises SdpoError with the end of the log of the first run that failed, and ConfigError, before any is started, for
    a folder with a run of other settings.
    """
    # A background job ignores SIGINT, and its children would as well; a killed launcher must not leave runs behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    rates = plan.rates or [""]
    tuning = [Trial(arm, rate, plan.tuning_seed, True) for rate in rates for arm in plan.arms] if len(rates) > 1 else []
    for trial in [*tuning, *(Trial(*each) for each in product(plan.arms, rates, plan.seeds))]:
        _refuse_other_settings(plan, trial)
    tried = _run_batch(plan, tuning)
    chosen = {arm: _chosen(plan, [t for t in tuning if t.arm == arm]) if tuning else rates[0] for arm in plan.arms}
    return _run_batch(plan, [Trial(arm, chosen[arm], seed) for seed in plan.seeds for arm in plan.arms]), tried


def _chosen(plan: Plan, trials: Sequence[Trial]) -> str:
    rate, _ = best_rate([load_curve(_folder(plan, trial), plan.source) for trial in trials], plan.budget)
    return next(trial.rate for trial in trials if float(trial.rate) == rate)


def _run_batch(plan: Plan, trials: Iterable[Trial]) -> list[Path]:
    with ThreadPoolExecutor(plan.jobs) as threads:
        try:
            return list(threads.map(lambda trial: _run(plan, trial), trials))
        except BaseException:  # Ctrl-C above all: the other runs would go on
            plan.stop.set()
            threads.shutdown(wait=False, cancel_futures=True)
            raise


def _label(plan: Plan, arm: Arm) -> tuple[str, bool]:
    """The arm's name among the runs, and whether it shares its root with another arm and therefore has a number."""
    alike = sum(other.root == arm.root for other in plan.arms) > 1
    return f"{arm.root}{plan.arms.index(arm) + 1 if alike else ''}", alike


def _folder(plan: Plan, trial: Trial) -> Path:
    label, _ = _label(plan, trial.arm)
    name = f"{label}{f'-lr{trial.rate}' if trial.rate else ''}-seed{trial.seed}"
    return plan.out / ("tuning" if trial.tuning else "runs") / name


def _run(plan: Plan, trial: Trial) -> Path:
    folder = _folder(plan, trial)
    if _spent(folder, plan):
        plan.say(f"{folder.name}: there already")
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    words = command(plan, trial, folder)
    write_atomically(_command_file(folder), json.dumps(words) + "\n")
    with (folder.parent / f"{folder.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            stopped = _watch(process, folder, plan)
        finally:
            _end(process)
    if not stopped and process.returncode:
        end = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise SdpoError(f"{folder.name} ended with exit code {process.returncode}: {' '.join(end)} (see {log.name})")
    plan.say(f"{folder.name}: {time.monotonic() - started:.0f} s in all")
    return folder


def command(plan: Plan, trial: Trial, folder: Path) -> list[str]:
    """The run's command line. What the user and the arm set comes last, except for tuning, seed, rate and folder."""
    arm, rate, seed, _ = trial
    label, alike = _label(plan, arm)
    return [
        sys.executable, "-m", "sdpo.main_sdpo", "--config-name", arm.root,
        "trainer.save_freq=0", "trainer.export_hf=false",
        *([f"trainer.total_training_steps={ENDLESS}"] if plan.budget != UNLIMITED else []),
        *([f"trainer.group_name={label}"] if alike else []),
        *plan.overrides, *arm.overrides, *(plan.tuning if trial.tuning else ()),
        *([f"actor_rollout_ref.actor.optim.lr={rate}"] if rate else []),
        f"data.seed={seed}", f"trainer.seed={seed}", f"trainer.default_local_dir={folder}",
    ]  # fmt: skip


def _refuse_other_settings(plan: Plan, trial: Trial) -> None:
    """A folder's name says root, rate and seed only; what else is set would be compared as if it were the same."""
    folder = _folder(plan, trial)
    if not (folder / METRICS_FILE).exists():
        return  # a run that failed before its first line may be tried again with other settings
    there = _command_file(folder)
    try:
        old = json.loads(there.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        old = []
    before, now = _settings(old), _settings(command(plan, trial, folder))
    if before != now:
        differ = " ".join(word for word in [*now, *before] if word not in now or word not in before) or "their order"
        known = f"a run of other settings ({differ}; see {there})" if old else f"a run, and {there} does not say which"
        raise ConfigError(f"{folder} holds {known}; give another --out")


def _settings(words: Sequence[str]) -> list[str]:
    return [word for word in words[1:] if not word.lstrip("+").startswith(MAY_DIFFER)]  # without the interpreter


def _command_file(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.command.json"


def _watch(process: subprocess.Popen, folder: Path, plan: Plan) -> bool:
    """Waits for the end, or for the budget, and then interrupts; True when it did."""
    size = -1
    while process.poll() is None:
        time.sleep(POLL_S)
        if plan.stop.is_set():
            process.send_signal(signal.SIGINT)
            return True
        newest = _size(folder / METRICS_FILE)
        if newest == size or plan.budget == UNLIMITED:
            continue
        size = newest
        try:
            spent = _spent(folder, plan)
        except DataError:
            process.send_signal(signal.SIGINT)
            raise
        if spent:
            process.send_signal(signal.SIGINT)
            return True
    return False


def _end(process: subprocess.Popen) -> None:
    """Waits for the process to end; kills its whole group when it does not."""
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _spent(folder: Path, plan: Plan) -> bool:
    if not (folder / METRICS_FILE).exists():
        return False
    history = RunHistory.load(folder)
    if history.state.get("status") == "finished":
        return True
    try:
        points = curve_of(history, plan.source).points
    except DataError:
        if len(history.series(history.validation_name or "")) > 1:
            raise  # there will never be a validation of `plan.source`
        return False
    return plan.budget != UNLIMITED and plan.budget.spent(points[-1])


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
