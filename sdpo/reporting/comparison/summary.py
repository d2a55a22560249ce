"""Numbers over seeds: accuracy within equal budgets, time to a target, what a step costs, what else has changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median, stdev
from typing import Any

from sdpo.errors import DataError
from sdpo.reporting.comparison.conditions import (
    Difference,
    cautions,
    differences,
    has_settings,
    not_recorded,
    row_names,
)
from sdpo.reporting.comparison.curves import UNLIMITED, Budget, Curve, Point

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
    """What a target cost, in the unit of the budget: median over all seeds (None: half of them or more did not reach it
    inside the budget), and how many did."""

    spent: float | None
    seeds: int


@dataclass(frozen=True)
class Within:
    """Held-out numbers of the validations inside one budget, over seeds."""

    best: Estimate
    last: Estimate
    reward: list[float | None]  # mean of the held-out responses: first validation, last one inside
    targets: dict[str, Reached]


@dataclass
class Summary:
    """One label at its best learning rate, over its seeds."""

    label: str
    learning_rate: float
    seeds: list[int]
    start: Estimate | None  # None: not every run was validated before training
    in_time: Within
    in_samples: Within
    mean_by_learning_rate: dict[str, float]  # over the time, of the runs that the rate was chosen by
    best_rate_at: str  # where in the grid the best rate is: "inside", "lowest", "highest" or "alone"
    phase_seconds: dict[str, float]  # of one step in time, mean over seeds
    response_length: list[float | None]  # tokens: first step, last step in time; means over seeds
    entropy: list[float | None]  # nats per token, likewise
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
    differences: list[Difference] = field(default_factory=list)  # settings that the rows should share and do not
    warnings: list[str] = field(default_factory=list)  # what else keeps numbers from being compared

    @property
    def cautions(self) -> list[str]:
        """Everything to know before a number is read."""
        return [*cautions(self.differences), *self.warnings]

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
            "differences": [asdict(difference) for difference in self.differences],
            "warnings": self.warnings,
            "summary": [asdict(row) for row in self.rows],
            "runs": [curve.as_json() for curve in self.curves],
            "tuning": [curve.as_json() for curve in self.tuning],
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

    `tuning`: runs that only chose the learning rates. Runs of one label that differ in more than rate and seed are rows
    of their own. The learning rate of a row is the one with the most seeds; among equals (a grid on one seed) the one
    of `best_rate`. Standard errors are over seeds. DataError for two runs of one row, rate and seed, and where no
    number could be compared.
    """
    conditions = [curve.conditions for curve in curves]
    names, compared = row_names([curve.label for curve in curves], conditions)
    tried = {
        name: [c for c in tuning if c.label == curve.label and has_settings(c.conditions, settings)]
        for name, curve, settings in zip(names, curves, compared, strict=True)
    }
    differ = differences(names, conditions)
    curves = [replace(curve, label=name) for curve, name in zip(curves, names, strict=True)]
    for runs in (curves, *tried.values()):
        _refuse_repeats(runs)
    open_ends = Budget(min(c.points[-1].seconds for c in curves), min(c.points[-1].samples for c in curves))
    full = Budget(
        open_ends.seconds if budget.seconds is None else budget.seconds,
        open_ends.samples if budget.samples is None else budget.samples,
    )
    rows = [_row([c for c in curves if c.label == label], tried[label], full, targets) for label in _labels(curves)]
    metric = ", ".join(dict.fromkeys(curve.metric for curve in curves))
    comparison = Comparison(title, metric, full, targets, curves, rows, list(tuning), about or {}, differ)
    comparison.warnings = [
        *not_recorded([curve.run for curve in curves], conditions),
        *(text for row in rows for text in _unlike_the_budget(comparison.chosen(row), full)),
        *(_at_the_edge(row) for row in rows if row.best_rate_at in ("lowest", "highest")),
    ]
    return comparison


def _unlike_the_budget(curves: Sequence[Curve], budget: Budget) -> Iterator[str]:
    """Of runs that have spent less than they were allowed, or were not validated in what they were."""
    for curve in curves:
        first, end = curve.points[0], curve.points[-1]
        if first.step > 0:
            since = Budget(first.seconds, first.samples)
            yield f"{curve.run} was not validated before training: a target met by {since} may have been met before"
        if not budget.spent(end):
            spent = Budget(end.seconds, end.samples)
            yield f"{curve.run} ended after {spent}, before the budget of {budget}: it had less than the others"
        for kind in (Budget(seconds=budget.seconds), Budget(samples=budget.samples)):
            if curve.within(kind)[-1].step == 0:
                yield f"{curve.run} counts as untrained: within {kind} it was only validated before training"


def _at_the_edge(row: Summary) -> str:
    tried = f"{row.label}: {row.learning_rate:g} is the {row.best_rate_at} of the learning rates tried"
    return f"{tried}; a better one may lie beyond it: give --rates on both sides"


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


def _row(all_rates: list[Curve], tuning: Sequence[Curve], budget: Budget, targets: Sequence[float]) -> Summary:
    rate, by_rate = best_rate(all_rates, budget)
    if tuning:
        _, by_rate = best_rate(list(tuning), budget)
    group = sorted((c for c in all_rates if c.learning_rate == rate), key=lambda c: c.seed)
    in_time, in_samples = Budget(seconds=budget.seconds), Budget(samples=budget.samples)
    sources = sorted({source for c in group for source in c.retention})
    starts = [c.start for c in group if c.start is not None]
    return Summary(
        label=group[0].label,
        learning_rate=rate,
        seeds=[c.seed for c in group],
        start=estimate(starts) if len(starts) == len(group) else None,
        in_time=_within(group, in_time, targets, lambda point: point.seconds),
        in_samples=_within(group, in_samples, targets, lambda point: float(point.samples)),
        mean_by_learning_rate={f"{r:g}": value for r, value in sorted(by_rate.items())},
        best_rate_at=place_in_grid(rate, list(by_rate)),
        phase_seconds=_mean_phases([c.phase_seconds(in_time) for c in group]),
        response_length=_from_to(group, "response_length", in_time),
        entropy=_from_to(group, "entropy", in_time),
        retention={
            source: [
                _mean_known([c.retention[source][0][1] for c in group if c.retention.get(source)]),
                _mean_known([c.until(c.retention.get(source, []), in_time) for c in group]),
            ]
            for source in sources
        },
        runs=[c.run for c in group],
    )


def _within(group: list[Curve], budget: Budget, targets: Sequence[float], cost: Callable[[Point], float]) -> Within:
    def reached(target: float) -> Reached:
        found = [cost(point) for curve in group if (point := curve.reach(target, budget))]
        middle = median([*found, *[math.inf] * (len(group) - len(found))])
        return Reached(middle if math.isfinite(middle) else None, len(found))

    return Within(
        best=estimate([c.best(budget) for c in group]),
        last=estimate([c.last(budget) for c in group]),
        reward=_from_to(group, "reward", budget),
        targets={f"{target:g}": reached(target) for target in targets},
    )


def estimate(values: list[float]) -> Estimate:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Estimate(mean(values), error, values)


def _mean_phases(of_runs: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for phases in of_runs for name in phases)
    return {name: mean([phases.get(name, 0.0) for phases in of_runs]) for name in names}


def _from_to(group: list[Curve], name: str, budget: Budget) -> list[float | None]:
    return [
        _mean_known([c.series[name][0][1] if c.series.get(name) else None for c in group]),
        _mean_known([c.until(c.series.get(name, []), budget) for c in group]),
    ]


def _mean_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
