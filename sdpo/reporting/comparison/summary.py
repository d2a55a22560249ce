"""Numbers over seeds: accuracy within equal budgets, time to a target, what a step costs, what else has changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean, median, stdev
from typing import Any

from sdpo.errors import DataError
from sdpo.reporting.comparison.curves import UNLIMITED, Budget, Curve

TARGETS = (0.5, 0.8)


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds with its standard error (None with one seed)."""

    mean: float
    error: float | None
    values: list[float]

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if self.error is None else f"{self.mean:.3f} ± {self.error:.3f}"


@dataclass(frozen=True)
class Reached:
    """When a target was reached: medians over all seeds (None: half of them or more never did), and how many did."""

    seconds: float | None
    samples: float | None
    seeds: int


@dataclass
class Summary:
    """One label at its best learning rate, over its seeds."""

    label: str
    learning_rate: float
    seeds: list[int]
    start: Estimate
    best_in_time: Estimate
    last_in_time: Estimate
    best_in_samples: Estimate
    last_in_samples: Estimate
    final: Estimate  # of the whole run, whatever it spent
    seconds: Estimate  # of the whole run
    samples: Estimate
    targets: dict[str, Reached]
    mean_by_learning_rate: dict[str, float]  # over the time, of the runs that the rate was chosen by
    best_rate_at: str  # where in the grid the best rate is: "inside", "lowest", "highest" or "alone"
    phase_seconds: dict[str, float]  # of one step, mean over seeds
    response_length: list[float | None]  # tokens: first step, last step in time; means over seeds
    entropy: list[float | None]  # nats per token, likewise
    reward: list[float | None]  # mean of the held-out responses: first validation, last in time; means over seeds
    retention: dict[str, list[float | None]]  # accuracy on other sources, before and at the last step in time
    runs: list[str] = field(default_factory=list)


@dataclass
class Comparison:
    """Everything that is drawn and written."""

    title: str
    metric: str
    budget: Budget
    targets: Sequence[float]
    curves: list[Curve]
    rows: list[Summary]
    tuning: list[Curve] = field(default_factory=list)  # runs on a seed of their own, by which the rates were chosen
    about: dict[str, Any] = field(default_factory=dict)

    def chosen(self, row: Summary) -> list[Curve]:
        """The runs that the row is made of."""
        wanted = (row.label, row.learning_rate)
        return sorted((c for c in self.curves if (c.label, c.learning_rate) == wanted), key=lambda c: c.seed)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "metric": self.metric,
            "budget": asdict(self.budget),
            "about": self.about,
            "summary": [asdict(row) for row in self.rows],
            "runs": [asdict(curve) for curve in self.curves],
            "tuning": [asdict(curve) for curve in self.tuning],
        }


def compare(
    curves: list[Curve],
    budget: Budget = UNLIMITED,
    targets: Sequence[float] = TARGETS,
    title: str = "Held-out accuracy",
    about: dict[str, Any] | None = None,
    tuning: Sequence[Curve] = (),
) -> Comparison:
    """A limit that `budget` leaves open is the most that every run has spent.

    `tuning`: runs that only chose the learning rates. The learning rate of a label is the one with the most seeds;
    among equals (a grid on one seed) the one of `best_rate`. Standard errors are over seeds: DataError for two runs of
    one label, rate and seed.
    """
    _refuse_repeats(curves)
    _refuse_repeats(tuning)
    budget = Budget(
        min(c.points[-1].seconds for c in curves) if budget.seconds is None else budget.seconds,
        min(c.points[-1].samples for c in curves) if budget.samples is None else budget.samples,
    )
    rows = [_row(label, curves, tuning, budget, targets) for label in _labels(curves)]
    return Comparison(title, curves[0].metric, budget, targets, curves, rows, list(tuning), about or {})


def _refuse_repeats(curves: Sequence[Curve]) -> None:
    seen: dict[tuple[str, float, int], Curve] = {}
    for curve in curves:
        first = seen.setdefault((curve.label, curve.learning_rate, curve.seed), curve)
        if first is not curve:
            same = f"both are {curve.label} with learning rate {curve.learning_rate:g} and seed {curve.seed}"
            raise DataError(f"{first.run} and {curve.run}: {same}; leave one out, or set trainer.group_name")


def best_rate(curves: list[Curve], budget: Budget = UNLIMITED) -> tuple[float, dict[float, float]]:
    """The learning rate with the most seeds, among equals the one with the best mean accuracy over the time on its
    first seed; and that accuracy for each rate.

    Seeds come first: an open budget is filled in once all runs are known, and could change the order of the accuracies.
    """
    in_time = Budget(seconds=budget.seconds)
    by_rate: dict[float, dict[int, Curve]] = {}
    for curve in sorted(curves, key=lambda c: c.learning_rate):
        by_rate.setdefault(curve.learning_rate, {})[curve.seed] = curve
    found = {rate: seeds[min(seeds)].mean(in_time) for rate, seeds in by_rate.items()}
    return max(found, key=lambda rate: (len(by_rate[rate]), found[rate])), found


def place_in_grid(rate: float, grid: Sequence[float]) -> str:
    """A best rate at an edge of the grid says only on which side the best is."""
    if len(grid) < 2:
        return "alone"
    return "lowest" if rate <= min(grid) else "highest" if rate >= max(grid) else "inside"


def _labels(curves: list[Curve]) -> list[str]:
    return sorted({c.label for c in curves}, reverse=True)


def _row(
    label: str, all_curves: list[Curve], tuning: Sequence[Curve], budget: Budget, targets: Sequence[float]
) -> Summary:
    curves = [c for c in all_curves if c.label == label]
    rate, by_rate = best_rate(curves, budget)
    if tried := [c for c in tuning if c.label == label]:
        _, by_rate = best_rate(tried, budget)
    group = sorted((c for c in curves if c.learning_rate == rate), key=lambda c: c.seed)
    in_time, in_samples = Budget(seconds=budget.seconds), Budget(samples=budget.samples)
    sources = sorted({source for c in group for source in c.retention})
    return Summary(
        label=label,
        learning_rate=rate,
        seeds=[c.seed for c in group],
        start=estimate([c.points[0].accuracy for c in group]),
        best_in_time=estimate([c.best(in_time) for c in group]),
        last_in_time=estimate([c.last(in_time) for c in group]),
        best_in_samples=estimate([c.best(in_samples) for c in group]),
        last_in_samples=estimate([c.last(in_samples) for c in group]),
        final=estimate([c.points[-1].accuracy for c in group]),
        seconds=estimate([c.points[-1].seconds for c in group]),
        samples=estimate([float(c.points[-1].samples) for c in group]),
        targets={f"{target:g}": _reached(group, target) for target in targets},
        mean_by_learning_rate={f"{r:g}": value for r, value in sorted(by_rate.items())},
        best_rate_at=place_in_grid(rate, list(by_rate)),
        phase_seconds=_mean_phases(group),
        response_length=_from_to(group, "response_length", in_time),
        entropy=_from_to(group, "entropy", in_time),
        reward=_from_to(group, "reward", in_time),
        retention={
            source: [
                _mean_known([c.retention[source][0][1] for c in group if c.retention.get(source)]),
                _mean_known([c.until(c.retention.get(source, []), in_time) for c in group]),
            ]
            for source in sources
        },
        runs=[c.run for c in group],
    )


def estimate(values: list[float]) -> Estimate:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(mean(values), error, values)


def _reached(group: list[Curve], target: float) -> Reached:
    found = [point for curve in group if (point := curve.reach(target))]
    never = [math.inf] * (len(group) - len(found))
    seconds, samples = median([p.seconds for p in found] + never), median([float(p.samples) for p in found] + never)
    return Reached(*(value if math.isfinite(value) else None for value in (seconds, samples)), len(found))


def _mean_phases(group: list[Curve]) -> dict[str, float]:
    names = list(dict.fromkeys(name for c in group for name in c.phase_seconds))
    return {name: mean([c.phase_seconds.get(name, 0.0) for c in group]) for name in names}


def _from_to(group: list[Curve], name: str, budget: Budget) -> list[float | None]:
    return [
        _mean_known([c.series[name][0][1] if c.series.get(name) else None for c in group]),
        _mean_known([c.until(c.series.get(name, []), budget) for c in group]),
    ]


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
