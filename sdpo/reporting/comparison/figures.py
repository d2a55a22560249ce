"""The comparison as PNG files, for documents."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING

from sdpo.reporting.comparison.curves import Curve, Point
from sdpo.reporting.comparison.summary import Comparison, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2563eb", "#d97706", "#0f9d76", "#8455c9", "#b3382c", "#4b5563")
PHASE_COLOURS = {"rollout": "#2563eb", "update": "#d97706", "sync": "#0f9d76", "other": "#9aa3ad"}


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """accuracy.png (by training seconds and by samples), steps.png (time split, length, entropy) and, with other data
    sources in the held-out set, retention.png."""
    import matplotlib

    matplotlib.use("Agg")
    paths = [_accuracy(comparison, folder / "accuracy.png"), _steps(comparison, folder / "steps.png")]
    if any(row.retention for row in comparison.rows):
        paths.append(_retention(comparison, folder / "retention.png"))
    return paths


def coloured(rows: Sequence[Summary]) -> list[tuple[Summary, str]]:
    """Every row with a colour; they repeat from the seventh on."""
    return list(zip(rows, cycle(COLOURS), strict=False))


def mean_points(curves: list[Curve]) -> list[Point]:
    """Mean over seeds of time, samples and accuracy, validation by validation, as far as all seeds go."""
    columns = zip(*(curve.points for curve in curves), strict=False)
    return [
        Point(
            points[0].step,
            sum(p.seconds for p in points) / len(points),
            round(sum(p.samples for p in points) / len(points)),
            sum(p.accuracy for p in points) / len(points),
        )
        for points in columns
    ]


def _accuracy(comparison: Comparison, path: Path) -> Path:
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, constrained_layout=True)
    for row, colour in coloured(comparison.rows):
        curves = comparison.chosen(row)
        name = f"{row.label}, lr {row.learning_rate:g}, {len(curves)} seeds"
        seeds = ((curve.points, 0.35, 1.0, None) for curve in curves)
        for points, alpha, width, label in (*seeds, (mean_points(curves), 1.0, 2.2, name)):
            y = [p.accuracy for p in points]
            axes[0].plot([p.seconds for p in points], y, color=colour, alpha=alpha, linewidth=width, label=label)
            axes[1].plot([p.samples for p in points], y, color=colour, alpha=alpha, linewidth=width)
    for axis, limit in zip(axes, (comparison.budget.seconds, comparison.budget.samples), strict=True):
        axis.axvline(limit, color="#9aa3ad", linestyle=":", linewidth=1.2)
        axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    axes[0].set_xlabel("training seconds (start-up and validation excluded)")
    axes[1].set_xlabel("responses sampled")
    axes[0].set_ylabel(f"held-out accuracy ({comparison.metric.removeprefix('val/')})")
    fig.legend(frameon=False, loc="outside lower center")  # names can be long
    return _save(fig, comparison, path)


def _steps(comparison: Comparison, path: Path) -> Path:
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    ends = [0.0] * len(comparison.rows)
    labels = [fill(row.label, 24) for row in comparison.rows]
    for phase, colour in PHASE_COLOURS.items():
        seconds = [row.phase_seconds.get(phase, 0.0) for row in comparison.rows]
        axes[0].barh(labels, seconds, 0.55, left=ends, color=colour, label=phase)
        ends = [end + taken for end, taken in zip(ends, seconds, strict=True)]
    axes[0].invert_yaxis()
    axes[0].set_xlabel("seconds per step")
    axes[0].legend(frameon=False, fontsize=8)
    for axis, name, unit in (
        (axes[1], "response_length", "tokens per response"),
        (axes[2], "entropy", "nats per token"),
    ):
        _series(axis, comparison, name)
        axis.set_ylabel(unit)
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    return _save(fig, comparison, path)


def _series(axis: Axes, comparison: Comparison, name: str) -> None:
    for row, colour in coloured(comparison.rows):
        for position, curve in enumerate(comparison.chosen(row)):
            steps, values = zip(*curve.series[name], strict=True) if curve.series.get(name) else ((), ())
            axis.plot(
                steps, values, color=colour, alpha=0.7, linewidth=1.2, label=None if position else fill(row.label, 40)
            )
    axis.legend(frameon=False, fontsize=8)


def _retention(comparison: Comparison, path: Path) -> Path:
    import matplotlib.pyplot as plt

    sources = sorted({source for row in comparison.rows for source in row.retention})
    fig, axes = plt.subplots(1, len(sources), figsize=(5 * len(sources), 3.6), squeeze=False, constrained_layout=True)
    for axis, source in zip(axes[0], sources, strict=True):
        for row, colour in coloured(comparison.rows):
            for position, curve in enumerate(c for c in comparison.chosen(row) if c.retention.get(source)):
                seconds = {p.step: p.seconds for p in curve.points}
                points = [(seconds[step], value) for step, value in curve.retention[source] if step in seconds]
                label = None if position else fill(row.label, 40)
                axis.plot(*zip(*points, strict=True), color=colour, alpha=0.7, linewidth=1.2, label=label)
        axis.set_ylim(0, 1.02)
        axis.set_title(source, fontsize=10)
        axis.set_xlabel("training seconds")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=8, loc="lower left")
    axes[0][0].set_ylabel("held-out accuracy")
    return _save(fig, comparison, path, ": what was known before")


def _save(fig, comparison: Comparison, path: Path, part: str = "") -> Path:
    import matplotlib.pyplot as plt

    differ = ", ".join(difference.setting for difference in comparison.differences)
    caution = f"\nnot under equal conditions; these differ: {shorten(differ, 100)}" if differ else ""
    fig.suptitle(f"{comparison.title}{part}{caution}", fontsize=11)
    fig.savefig(path, dpi=130)
    plt.close(fig)
    return path
