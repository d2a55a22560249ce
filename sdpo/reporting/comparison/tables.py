"""The comparison in Markdown and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from sdpo.reporting.charts import Line, Points, clock, line_chart, stacked_bars
from sdpo.reporting.comparison.curves import PHASES, Budget, Curve
from sdpo.reporting.comparison.figures import mean_points
from sdpo.reporting.comparison.summary import Comparison, Reached, Summary, Within
from sdpo.reporting.page import page
from sdpo.tracking.history import duration

Row = list[str]


def tables(comparison: Comparison) -> list[tuple[str, str, Row, list[Row]]]:
    """(title, note, heading, rows) of each table; what the Markdown and the page show. Every number of a table is from
    inside the budget that its title names."""
    in_time = f"within {Budget(seconds=comparison.budget.seconds)}"
    in_samples = f"within {Budget(samples=comparison.budget.samples)}"
    cost = [
        [
            row.label,
            *(_seconds(row.phase_seconds.get(phase)) for phase in (*PHASES, "other")),
            _seconds(sum(row.phase_seconds.values()) or None),
        ]
        for row in comparison.rows
    ]
    return [
        _accuracy(comparison, in_time, "seconds", [row.in_time for row in comparison.rows], duration),
        _accuracy(comparison, in_samples, "samples", [row.in_samples for row in comparison.rows], "{:,.0f}".format),
        (f"Cost {in_time}", "seconds of one step by phase", ["", *PHASES, "other", "step"], cost),
        (f"What else changed {in_time}", "first step or validation → last", *_changes(comparison.rows)),
        (
            f"Learning rates {in_time}",
            f"accuracy averaged over the time, {_tried_on(comparison)}",
            ["", "lr: accuracy", "the chosen one is"],
            [
                [row.label, ", ".join(f"{r}: {v:.3f}" for r, v in row.mean_by_learning_rate.items()), row.best_rate_at]
                for row in comparison.rows
            ],
        ),
    ]


def _accuracy(
    comparison: Comparison, budget: str, unit: str, found: list[Within], shown: Callable[[float], str]
) -> tuple[str, str, Row, list[Row]]:
    wanted = [f"{target:g}" for target in comparison.targets]
    rows = [
        [
            row.label,
            f"{row.learning_rate:g}",
            str(len(row.seeds)),
            "–" if row.start is None else str(row.start),
            str(within.best),
            str(within.last),
            _from_to(within.reward, 3),
            *(_reached(within.targets[name], len(row.seeds), shown) for name in wanted),
        ]
        for row, within in zip(comparison.rows, found, strict=True)
    ]
    note = (
        f"{comparison.metric}, mean ± standard error over seeds; {unit} to a target: between two validations in "
        "proportion, median over seeds, in brackets how many seeds reached it"
    )
    heading = ["", "lr", "seeds", "start", "best", "last", "mean reward", *(f"{unit} to {name}" for name in wanted)]
    return f"Held-out accuracy {budget}", note, heading, rows


def _tried_on(comparison: Comparison) -> str:
    seeds = sorted({curve.seed for curve in comparison.tuning})
    return f"on seed {', '.join(map(str, seeds))}, which is not reported" if seeds else "on the first seed"


def markdown(comparison: Comparison) -> str:
    parts = [f"**Warning:** {text}.\n" for text in comparison.cautions]
    for title, note, heading, rows in tables(comparison):
        lines = [[cell.replace("|", "\\|") for cell in line] for line in (heading, ["---"] * len(heading), *rows)]
        parts.append(f"{title} ({note}):\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    return "\n".join(parts)


def comparison_page(comparison: Comparison) -> str:
    """The page: tables and curves, everything inline."""
    tiles = (f'<div class="tile warning"><span>warning</span>{escape(text)}</div>' for text in comparison.cautions)
    warnings = f'<div class="tiles">{"".join(tiles)}</div>' if comparison.cautions else ""
    parts = [f"<header><h1>{escape(comparison.title)}</h1></header>{warnings}"]
    about = "".join(
        f"<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>" for key, value in comparison.about.items()
    )
    for title, note, heading, rows in tables(comparison):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(
            f"<h2>{escape(title)}</h2><p>{escape(note)}</p>"
            f'<div class="card"><table class="plain"><tr>{head}</tr>{body}</table></div>'
        )
    curves = f'<h2>Curves</h2><p></p><div class="charts">{"".join(_charts(comparison))}</div>'
    parts.insert(3, curves)  # behind the tables of accuracy
    if about:
        parts.append(f'<h2>How it was measured</h2><p></p><div class="card"><table>{about}</table></div>')
    return page(comparison.title, "\n".join(parts))


def _charts(comparison: Comparison) -> list[str]:
    chosen = {row.label: comparison.chosen(row) for row in comparison.rows}

    def means(x: Callable) -> list[Line]:
        return [
            Line(label, [(x(p), p.accuracy) for p in mean_points(curves)], i % 6, markers=True)
            for i, (label, curves) in enumerate(chosen.items())
        ]

    def seeds(values: Callable[[Curve], Points]) -> list[Line]:
        return [
            Line(f"{label}, seed {curve.seed}", values(curve), i % 6)
            for i, (label, curves) in enumerate(chosen.items())
            for curve in curves
        ]

    charts = [
        line_chart("Accuracy by training time", means(lambda p: p.seconds), "mean over seeds", (0, 1), "clock", clock),
        line_chart("Accuracy by samples", means(lambda p: p.samples), "mean over seeds", (0, 1), "samples"),
        line_chart("Accuracy of every seed", seeds(lambda c: [(p.step, p.accuracy) for p in c.points]), "", (0, 1)),
        line_chart("Held-out mean reward", seeds(lambda c: c.series.get("reward", [])), ""),
        line_chart("Response length", seeds(lambda c: c.series.get("response_length", [])), "tokens"),
        line_chart("Entropy", seeds(lambda c: c.series.get("entropy", [])), "nats per token"),
    ]
    for source in sorted({source for row in comparison.rows for source in row.retention}):
        lines = seeds(lambda c: c.retention.get(source, []))  # noqa: B023 (called at once)
        charts.append(line_chart(f"Retention: {source}", lines, "accuracy on other held-out problems", (0, 1)))
    phases = [
        Line(phase, [(i, row.phase_seconds.get(phase, 0.0)) for i, row in enumerate(comparison.rows)], n)
        for n, phase in enumerate((*PHASES, "other"))
    ]
    names = ", ".join(f"{i}: {row.label}" for i, row in enumerate(comparison.rows))
    return [chart for chart in [*charts, stacked_bars("Seconds of a step", phases, names)] if chart]


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _reached(found: Reached, seeds: int, shown: Callable[[float], str]) -> str:
    return f"{'never' if found.spent is None else shown(found.spent)} ({found.seeds}/{seeds})"


def _changes(rows: list[Summary]) -> tuple[Row, list[Row]]:
    sources = sorted({source for row in rows for source in row.retention})
    heading = ["", "response length, tokens", "entropy, nats", *(f"accuracy on {source}" for source in sources)]
    return heading, [
        [
            row.label,
            _from_to(row.response_length, 1),
            _from_to(row.entropy, 3),
            *(_from_to(row.retention.get(source, [None, None]), 3) for source in sources),
        ]
        for row in rows
    ]


def _from_to(values: list[float | None], digits: int) -> str:
    return " → ".join("–" if value is None else f"{value:.{digits}f}" for value in values)
