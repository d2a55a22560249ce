"""One run as the comparison sees it: held-out accuracy against training seconds and against samples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from sdpo.errors import DataError
from sdpo.reporting.comparison.conditions import Conditions, conditions_of
from sdpo.tracking.history import CONFIG_FILE, RunHistory, duration, setting
from sdpo.tracking.timing import ASIDE, TRAINING

_BY_SOURCE = re.compile(r"^val/(.+)/avg@(\d+)$")
PHASES = TRAINING  # of a step; validation, exports and checkpoints are not training
SERIES = {"response_length": "train/response_length", "entropy": "actor/entropy"}


@dataclass(frozen=True)
class Point:
    """One validation. `seconds` of training, without start-up, validation and checkpoints; `samples` drawn so far."""

    step: int
    seconds: float
    samples: int
    accuracy: float


@dataclass(frozen=True)
class Budget:
    """What every run may spend; None: no limit of that kind."""

    seconds: float | None = None
    samples: int | None = None

    def __str__(self) -> str:
        time = [] if self.seconds is None else [f"{duration(self.seconds)} of training"]
        return " and ".join([*time, *([] if self.samples is None else [f"{self.samples:,} samples"])])

    def holds(self, point: Point) -> bool:
        in_time = self.seconds is None or point.seconds <= self.seconds
        return in_time and (self.samples is None or point.samples <= self.samples)

    def spent(self, point: Point) -> bool:
        """Whether everything that is limited has been used up."""
        enough_time = self.seconds is None or point.seconds >= self.seconds
        return enough_time and (self.samples is None or point.samples >= self.samples)


UNLIMITED = Budget()


@dataclass(frozen=True)
class Curve:
    """One run. `retention`: held-out accuracy on other data sources, by source: (step, value)."""

    run: str
    label: str  # runs with the same label are compared as one, over learning rates and seeds
    learning_rate: float
    seed: int
    metric: str
    points: list[Point]
    retention: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    costs: list[tuple[float, dict[str, float]]] = field(default_factory=list)  # steps: training seconds, and by phase
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)

    def as_json(self) -> dict[str, Any]:
        """Without the time of every step, which is long and in the run folder."""
        return {name: value for name, value in asdict(self).items() if name != "costs"}

    @property
    def start(self) -> float | None:
        """Accuracy before training, if that was measured."""
        return self.points[0].accuracy if self.points[0].step == 0 else None

    def within(self, budget: Budget) -> list[Point]:
        """The validations inside the budget; the one before training always is. Raises DataError when there is none."""
        points = [p for p in self.points if p.step == 0 or budget.holds(p)]
        if not points:
            first = self.points[0]
            spent = Budget(first.seconds, first.samples)
            raise DataError(f"{self.run}: no validation within {budget}, the first is after {spent}")
        return points

    def best(self, budget: Budget) -> float:
        return max(p.accuracy for p in self.within(budget))

    def last(self, budget: Budget) -> float:
        return self.within(budget)[-1].accuracy

    def mean(self, budget: Budget) -> float:
        """Accuracy averaged over the training time in the budget: a quick rise counts, and so does where it ends."""
        points = self.within(budget)
        area = sum((b.seconds - a.seconds) * (a.accuracy + b.accuracy) / 2 for a, b in pairwise(points))
        spent = points[-1].seconds - points[0].seconds
        return area / spent if spent else points[-1].accuracy

    def reach(self, target: float, budget: Budget = UNLIMITED) -> Point | None:
        """Where the line through the validations inside the budget first meets `target`, so that it does not hang on
        how often a run validates. `step` is that of the validation which found it."""
        points = self.within(budget)
        for before, after in pairwise([points[0], *points]):
            if after.accuracy >= target:
                return _between(before, after, target)
        return None

    def until(self, series: list[tuple[int, float]], budget: Budget) -> float | None:
        """The newest value of a series at or before the last step inside the budget."""
        end = self.within(budget)[-1].step
        values = [value for step, value in series if step <= end]
        return values[-1] if values else None

    def phase_seconds(self, budget: Budget) -> dict[str, float]:
        """Mean of a step, over the steps that ended inside the time of the budget."""
        inside = [phases for spent, phases in self.costs if budget.seconds is None or spent <= budget.seconds]
        names = dict.fromkeys(name for phases in inside for name in phases)
        return {name: mean([phases.get(name, 0.0) for phases in inside]) for name in names}


def _between(before: Point, after: Point, accuracy: float) -> Point:
    """The point of this accuracy on the line from `before`, unless that has it already, to `after`."""
    share = max(0.0, accuracy - before.accuracy) / (after.accuracy - before.accuracy or 1.0)
    seconds = before.seconds + share * (after.seconds - before.seconds)
    samples = before.samples + share * (after.samples - before.samples)
    return Point(after.step, seconds, round(samples), max(accuracy, before.accuracy))


def load_curve(source: Path | str, data_source: str | None = None) -> Curve:
    """Reads a run folder, or `wandb:ENTITY/PROJECT/RUN_ID`. See `curve_of`."""
    if str(source).startswith("wandb:"):
        from sdpo.reporting.comparison.wandb_runs import load_history

        return curve_of(load_history(str(source).removeprefix("wandb:")), data_source)
    return curve_of(RunHistory.load(source), data_source)


def curve_of(history: RunHistory, data_source: str | None = None) -> Curve:
    """Accuracy is `val/avg@n`; with `data_source` that of this source alone, and the other sources are retention.

    Raises DataError for a run without two validations, or without a configuration.
    """
    name, others = _metrics(history, data_source)
    if name is None or len(history.series(name)) < 2:
        wanted = f" on {data_source}" if data_source else ""
        raise DataError(f"{history.run_dir}: no held-out accuracy{wanted} at two steps or more; nothing to compare")
    config = history.config
    try:
        rate, seed = float(config["actor_rollout_ref"]["actor"]["optim"]["lr"]), int(config["data"]["seed"])
    except (KeyError, TypeError, ValueError) as error:
        missing = f"no learning rate and seed in {CONFIG_FILE} (is the file there?); nothing to compare"
        raise DataError(f"{history.run_dir}: {missing}") from error
    return Curve(
        run=history.run_dir.name,
        label=setting(config, "trainer.group_name") or history.summary().algorithm,
        learning_rate=rate,
        seed=seed,
        metric=name,
        points=list(_points(history, name)),
        retention={source: history.series(metric) for source, metric in others.items()},
        costs=list(_costs(history)),
        series={key: history.series(metric) for key, metric in (SERIES | {"reward": _reward_of(name)}).items()},
        conditions=conditions_of(history, name),
    )


def _metrics(history: RunHistory, data_source: str | None) -> tuple[str | None, dict[str, str]]:
    """The measured metric, and the metric of every other data source. (A single source is not logged apart.)"""
    found: dict[str, tuple[int, str]] = {}
    for name in history.names():
        if match := _BY_SOURCE.match(name):
            found[match[1]] = max(found.get(match[1], (0, "")), (int(match[2]), name))
    if data_source is None or not found:
        recorded = history.recorded("inputs").get("val_sources")
        is_other = data_source is not None and isinstance(recorded, list) and data_source not in recorded
        return None if is_other else history.validation_name, {}
    names = {source: name for source, (_, name) in found.items()}
    return names.pop(data_source, None), names


def _reward_of(name: str) -> str:
    """The mean reward of the responses that an accuracy is of."""
    return f"{name.rpartition('/')[0]}/reward"


def _aside(row: dict[str, Any]) -> float:
    return sum(row.get(f"timing/{phase}_s") or 0.0 for phase in ASIDE)


def _training_seconds(history: RunHistory) -> Iterator[tuple[dict[str, Any], float]]:
    """Rows, and the training seconds behind them: without start-up and the first validation, the same for all."""
    overhead, elapsed = 0.0, 0.0
    for row in history.rows:
        overhead += _aside(row)
        elapsed = row.get("timing/elapsed_s") or elapsed
        if row["step"] == 0:
            overhead = elapsed
        yield row, max(0.0, elapsed - overhead)


def _points(history: RunHistory, name: str) -> Iterator[Point]:
    samples = 0
    for row, seconds in _training_seconds(history):
        samples = int(row.get("train/samples") or samples)
        if row.get(name) is not None:
            yield Point(row["step"], seconds, samples, row[name])


def _costs(history: RunHistory) -> Iterator[tuple[float, dict[str, float]]]:
    """Every training step that was timed; `other` is what it took beyond its phases, validation, export and checkpoint.
    A phase that a step has not measured is left out."""
    for row, seconds in _training_seconds(history):
        if row["step"] > 0 and (whole := row.get("timing/step_s")) is not None:
            phases = {phase: taken for phase in PHASES if (taken := row.get(f"timing/{phase}_s")) is not None}
            yield seconds, phases | {"other": max(0.0, whole - _aside(row) - sum(phases.values()))}
