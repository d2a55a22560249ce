"""Several runs side by side: accuracy by wall clock and by samples, medians over seeds, best rate per algorithm."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from sdpo.errors import DataError
from sdpo.tracking.history import RunHistory

TARGETS = (0.5, 0.8)


@dataclass(frozen=True)
class Curve:
    """Held-out accuracy of one run: `points` are (step, training seconds without validation, samples, accuracy)."""

    run: str
    algorithm: str
    learning_rate: float
    seed: int
    points: list[tuple[int, float, int, float]]

    @property
    def final(self) -> float:
        return self.points[-1][3]

    @property
    def best(self) -> float:
        return max(point[3] for point in self.points)

    def reach(self, target: float) -> tuple[float, int] | None:
        """(seconds, samples) at the first validation at or above `target`."""
        return next(((s, n) for _, s, n, accuracy in self.points if accuracy >= target), None)


@dataclass
class Summary:
    """One algorithm at its best learning rate. Times to a target: median over seeds; None: most never."""

    algorithm: str
    learning_rate: float
    seeds: list[int]
    start: float
    final: float
    best: float
    seconds: float
    samples: int
    to_target: dict[str, dict[str, float] | None]
    final_by_learning_rate: dict[str, float]
    runs: list[str] = field(default_factory=list)


def load_curve(folder: Path) -> Curve:
    """Raises DataError for a folder without validations."""
    history = RunHistory.load(folder)
    name = history.validation_name
    if name is None or len(history.series(name)) < 2:
        raise DataError(f"{folder}: no held-out accuracy at two steps or more; nothing to compare")
    points, overhead, samples, elapsed = [], 0.0, 0, 0.0
    for row in history.rows:
        overhead += (row.get("timing/validate_s") or 0.0) + (row.get("timing/checkpoint_s") or 0.0)
        samples, elapsed = int(row.get("train/samples") or samples), row.get("timing/elapsed_s") or elapsed
        if row["step"] == 0:
            overhead = elapsed  # start-up and the first validation are the same for all
        if row.get(name) is not None:
            points.append((row["step"], max(0.0, elapsed - overhead), samples, row[name]))
    config = history.config
    return Curve(
        run=folder.name,
        algorithm=history.summary().algorithm,
        learning_rate=float(config["actor_rollout_ref"]["actor"]["optim"]["lr"]),
        seed=int(config["data"]["seed"]),
        points=points,
    )


def summarize(curves: list[Curve]) -> list[Summary]:
    """One row per algorithm. Its best learning rate is the one with the highest final accuracy on the first seed: the
    grid is run on that seed alone."""
    rows = []
    for algorithm in sorted({c.algorithm for c in curves}, reverse=True):
        by_rate: dict[float, list[Curve]] = {}
        for curve in curves:
            if curve.algorithm == algorithm:
                by_rate.setdefault(curve.learning_rate, []).append(curve)
        first = min(c.seed for group in by_rate.values() for c in group)
        finals = {rate: c.final for rate, group in by_rate.items() for c in group if c.seed == first}
        rate = max(finals, key=lambda r: finals[r])
        rows.append(_summary(algorithm, rate, sorted(by_rate[rate], key=lambda c: c.seed), finals))
    return rows


def _summary(algorithm: str, rate: float, group: list[Curve], finals: dict[float, float]) -> Summary:
    to_target: dict[str, dict[str, float] | None] = {}
    for target in TARGETS:
        reached = [found for curve in group if (found := curve.reach(target))]
        enough = len(reached) * 2 > len(group)
        to_target[f"{target:g}"] = (
            {"seconds": median(r[0] for r in reached), "samples": median(r[1] for r in reached)} if enough else None
        )
    return Summary(
        algorithm=algorithm,
        learning_rate=rate,
        seeds=[c.seed for c in group],
        start=median(c.points[0][3] for c in group),
        final=median(c.final for c in group),
        best=median(c.best for c in group),
        seconds=median(c.points[-1][1] for c in group),
        samples=int(median(c.points[-1][2] for c in group)),
        to_target=to_target,
        final_by_learning_rate={f"{r:g}": value for r, value in sorted(finals.items())},
        runs=[c.run for c in group],
    )


def table(rows: list[Summary]) -> str:
    """Markdown."""
    lines = [
        "| algorithm | lr | seeds | start | final | best | training s | samples "
        "| s to 0.5 | samples to 0.5 | s to 0.8 | final by lr |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        half, high = row.to_target["0.5"], row.to_target["0.8"]
        rates = ", ".join(f"{rate}: {value:.2f}" for rate, value in row.final_by_learning_rate.items())
        lines.append(
            f"| {row.algorithm} | {row.learning_rate:g} | {len(row.seeds)} "
            f"| {row.start:.2f} | {row.final:.2f} | {row.best:.2f} "
            f"| {row.seconds:.0f} | {row.samples} | {_or_never(half, 'seconds')} | {_or_never(half, 'samples')} "
            f"| {_or_never(high, 'seconds')} | {rates} |"
        )
    return "\n".join(lines) + "\n"


def _or_never(found: dict[str, float] | None, key: str) -> str:
    return "never" if found is None else f"{found[key]:.0f}"


def as_json(curves: list[Curve], rows: list[Summary]) -> dict[str, Any]:
    return {"summary": [asdict(row) for row in rows], "curves": [asdict(curve) for curve in curves]}


def figure(curves: list[Curve], rows: list[Summary], title: str, path: Path) -> None:
    """PNG: accuracy by training seconds and by samples; every seed thin, the best learning rate only."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, constrained_layout=True)
    colors = {"SDPO": "#2563eb", "GRPO": "#d97706"}
    for row in rows:
        chosen = [c for c in curves if c.algorithm == row.algorithm and c.learning_rate == row.learning_rate]
        for position, curve in enumerate(chosen):
            for axis, column in zip(axes, (1, 2), strict=True):
                axis.plot(
                    [p[column] for p in curve.points],
                    [p[3] for p in curve.points],
                    color=colors.get(row.algorithm, "#4b5563"),
                    alpha=0.8,
                    marker="o",
                    markersize=3,
                    label=f"{row.algorithm}, lr {row.learning_rate:g}" if position == 0 else None,
                )
    for axis, label in zip(axes, ("training seconds (validation excluded)", "responses sampled"), strict=True):
        axis.set_xlabel(label)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("held-out accuracy")
    axes[0].legend(frameon=False)
    fig.suptitle(title)
    fig.savefig(path, dpi=150)
    plt.close(fig)
