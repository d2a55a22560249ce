"""What an evaluation says: text for a terminal, Markdown, a page, JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from sdpo.evaluation.measure import Measured, by_source
from sdpo.evaluation.statistics import Estimate, Problem, accuracy, difference, reward, solved_within
from sdpo.reporting.page import page

ALL = "all"
LOST = 0.05  # share of answers that nobody graded, or that were cut, from which it is said above the table
Row = list[str]


@dataclass(frozen=True)
class Evaluation:
    measured: list[Measured]
    answers: int  # to each problem
    about: dict[str, Any]  # settings that the numbers depend on

    def sets(self) -> dict[str, list[list[Problem]]]:
        """Name of a set of problems -> those of each model; all of them, and each data source where there are some."""
        sources, everything = by_source(self.measured), [one.problems for one in self.measured]
        parts = {s: [[p for p in own if p.source == s] for own in everything] for s in sources}
        return {ALL: everything} | (parts if len(sources) > 1 else {})

    def cautions(self) -> list[str]:
        found = []
        for one in self.measured:
            answers = sum(p.answers for p in one.problems)
            for what, count in (
                ("could not be graded", answers - sum(p.graded for p in one.problems)),
                ("are cut at the length limit", sum(p.truncated for p in one.problems)),
            ):
                if count > LOST * answers:
                    found.append(f"{one.name}: {count / answers:.0%} of the answers {what}")
        return found


def tables(found: Evaluation) -> list[tuple[str, str, Row, list[Row]]]:
    """(title, note, heading, rows) of each."""
    n = found.answers
    heading = [
        "problems of",
        "model",
        "problems",
        f"avg@{n}",
        *([f"pass@{n}"] if n > 1 else []),
        "reward",
        "cut",
        "lost",
    ]
    heading += ["tokens"]
    rows = []
    for name, sets in found.sets().items():
        for one, problems in zip(found.measured, sets, strict=True):
            rows.append([name, one.name, *_cells(problems, n)])
    note = "mean [95 % interval over problems]"
    result = [("Accuracy", note, heading, rows)]
    if len(found.measured) > 1:
        note = f"to {found.measured[0].name}, on the same problems; p: signs at random make as large a difference"
        wanted = ["problems of", "model", "problems", "accuracy", "better on", "worse on", "p"]
        result.append(("Differences", note, wanted, _differences(found)))
    return result


def _cells(problems: Sequence[Problem], n: int) -> Row:
    answers = sum(p.answers for p in problems)
    tokens = [p.tokens for p in problems if p.tokens is not None]
    lost = sum(p.answers - p.graded for p in problems)
    return [
        f"{len(problems):,}",
        _told(accuracy(problems)),
        *([_told(solved_within(problems, n))] if n > 1 else []),
        "–" if (r := reward(problems)) is None else f"{r.value:.3f}",
        f"{sum(p.truncated for p in problems) / answers:.1%}" if answers else "–",
        f"{lost / answers:.1%}" if answers else "–",
        f"{sum(tokens) / answers:,.0f}" if tokens and answers else "–",
    ]


def _differences(found: Evaluation) -> list[Row]:
    rows = []
    for name, (first, *others) in found.sets().items():
        for one, problems in zip(found.measured[1:], others, strict=True):
            gap = difference(problems, first)
            told = ["0", "–", "–", "–", "–"]
            if gap is not None:
                value = f"{gap.value.value:+.3f} [{gap.value.low:+.3f}, {gap.value.high:+.3f}]"
                told = [f"{gap.problems:,}", value, f"{gap.better:,}", f"{gap.worse:,}", f"{gap.p:.2g}"]
            rows.append([name, one.name, *told])
    return rows


def _told(estimate: Estimate | None) -> str:
    return "–" if estimate is None else str(estimate)


def text(found: Evaluation) -> str:
    parts = [f"warning: {caution}" for caution in found.cautions()]
    for title, note, heading, rows in tables(found):
        widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in (heading, *rows)
        ]
        parts.append("\n".join([f"{title} ({note})", *(line.rstrip() for line in lines)]))
    return "\n\n".join(parts)


def markdown(found: Evaluation) -> str:
    parts = [f"**Warning:** {caution}.\n" for caution in found.cautions()]
    for title, note, heading, rows in tables(found):
        lines = [[cell.replace("|", "\\|") for cell in line] for line in (heading, ["---"] * len(heading), *rows)]
        parts.append(f"{title} ({note}):\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    return "\n".join(parts)


def html(found: Evaluation, title: str) -> str:
    tiles = "".join(f'<div class="tile warning"><span>warning</span>{escape(c)}</div>' for c in found.cautions())
    parts = [f"<header><h1>{escape(title)}</h1></header>", f'<div class="tiles">{tiles}</div>' if tiles else ""]
    for name, note, heading, rows in tables(found):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in heading)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        parts.append(
            f"<h2>{escape(name)}</h2><p>{escape(note)}</p>"
            f'<div class="card"><table class="plain"><tr>{head}</tr>{body}</table></div>'
        )
    about = "".join(f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in found.about.items())
    parts.append(f'<h2>How it was measured</h2><p></p><div class="card"><table>{about}</table></div>')
    return page(title, "\n".join(parts))


def as_json(found: Evaluation) -> dict[str, Any]:
    """Every number of the tables, and every problem's counts, from which they can be made anew."""
    sets = {}
    for name, parts in found.sets().items():
        first = parts[0]
        sets[name] = {
            one.name: {
                f"avg@{found.answers}": _plain(accuracy(problems)),
                **{f"pass@{k}": _plain(solved_within(problems, k)) for k in range(2, found.answers + 1)},
                "reward": _plain(reward(problems)),
                "difference": None if problems is first else _plain(difference(problems, first)),
            }
            for one, problems in zip(found.measured, parts, strict=True)
        }
    problems = {one.name: [asdict(problem) for problem in one.problems] for one in found.measured}
    return {"about": found.about, "answers": found.answers, "sets": sets, "problems": problems}


def _plain(value: Any) -> Any:
    return None if value is None else asdict(value)
