"""The inspection of a data file, for a terminal."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sdpo.cli.data_check import Finding, Inspection, grader_name
from sdpo.config.schema import Config

LISTED = 5  # findings shown of each kind
BINS = 10
BAR = 40  # characters of the longest bar


def print_inspection(name: str, found: Inspection, config: Config, console: Console | None = None) -> None:
    console = console or Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{escape(name)}[/]: {found.rows} rows, {found.usable} usable")
    _columns(found, console)
    _sources(found, config, console)
    _lengths(found, config, console)
    _findings("rows that do not fit the schema", found.unusable, console)
    _findings("rows that cannot be graded", found.ungradable, console)
    _findings(
        "rows with a question that was there before"
        + (f" ({found.contradicted} with another answer)" if found.contradicted else ""),
        found.repeated,
        console,
        bad=found.contradicted > 0,
    )
    if found.overlapping is not None:
        _findings("rows with a question of the other file", found.overlapping, console)
    if found.gold is not None:
        gold = found.gold
        console.print(
            f"\ngraded: {gold.right} right answers with reward 1, {gold.wrong} wrong ones with reward 0, "
            f"{gold.without_answer} rows without an answer to write down"
        )
        _findings("unexpected grades", gold.exceptions, console)


def _columns(found: Inspection, console: Console) -> None:
    table = Table("column", "type", "filled", box=None, pad_edge=False)
    for name, column in found.columns.items():
        share = f"{column.filled / max(found.rows, 1):.0%}"
        table.add_row(escape(name), escape(" | ".join(column.types) or "null"), share)
    console.print()
    console.print(table)


def _sources(found: Inspection, config: Config, console: Console) -> None:
    table = Table("data_source", "rows", "grader", box=None, pad_edge=False)
    for name, rows in sorted(found.sources.items(), key=lambda item: -item[1]):
        table.add_row(escape(name), str(rows), escape(grader_name(name, config)))
    console.print()
    console.print(table)


def _lengths(found: Inspection, config: Config, console: Console) -> None:
    if not found.lengths:
        return
    ordered = sorted(found.lengths)
    shown = ", ".join(
        f"{label} {ordered[min(len(ordered) - 1, int(share * len(ordered)))]}"
        for label, share in (("median", 0.5), ("95%", 0.95), ("99%", 0.99), ("longest", 1.0))
    )
    console.print(f"\nprompt length in {found.unit}: {shown}")
    for low, high, count in histogram(found.lengths):
        bar = "█" * round(BAR * count / len(found.lengths)) or ("▏" if count else "")
        console.print(f"  {low:>7} - {high:<7} {count:>8} {bar}")
    if found.too_long:
        limit = config.data.max_prompt_length
        console.print(f"  [yellow]{found.too_long} over data.max_prompt_length={limit}: dropped at start[/]")


def histogram(lengths: Sequence[int] | array[int], bins: int = BINS) -> list[tuple[int, int, int]]:
    """(shortest, longest, how many) of equal bins from the shortest to the longest length, both inclusive."""
    least, most = min(lengths), max(lengths)
    width = max(1, -(-(most - least + 1) // bins))
    counts: dict[int, int] = {}
    for length in lengths:
        counts[(length - least) // width] = counts.get((length - least) // width, 0) + 1
    return [
        (least + i * width, least + (i + 1) * width - 1, counts.get(i, 0)) for i in range((most - least) // width + 1)
    ]


def _findings(title: str, findings: Sequence[Finding], console: Console, bad: bool = True) -> None:
    if not findings:
        console.print(f"\n[green]no {title}[/]")
        return
    console.print(f"\n[{'red' if bad else 'yellow'}]{len(findings)} {title}[/]")
    for finding in findings[:LISTED]:
        console.print(f"  row {finding.row}: {escape(finding.field)}: {escape(finding.why)}")
    if len(findings) > LISTED:
        console.print(f"  and {len(findings) - LISTED} more")
