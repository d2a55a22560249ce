"""The inspection of a data file, for a terminal."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sdpo.cli.data_check import Finding, Inspection, grader_name
from sdpo.cli.reward_trial import Trial
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
        console.print()
        if gold.right or gold.wrong or gold.without_answer or not gold.trial:
            console.print(
                f"graded: {gold.right} right answers with reward 1, {gold.wrong} wrong ones with reward 0, "
                f"{gold.without_answer} rows without an answer to write down"
            )
        if gold.trial:
            _trial(gold.trial, grader_name("", config), console)
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
    rows: dict[tuple[str, str], list[int]] = {}
    for finding in findings:
        rows.setdefault((finding.field, finding.why), []).append(finding.row)
    for (field, why), numbers in list(rows.items())[:LISTED]:
        more = f" and {len(numbers) - 1} more ({', '.join(map(str, numbers[1:4]))}{', ...' * (len(numbers) > 4)})"
        console.print(f"  row {numbers[0]}{more if len(numbers) > 1 else ''}: {escape(field)}: {escape(why)}")
    if len(rows) > LISTED:
        console.print(f"  and {len(rows) - LISTED} more{' reasons' if len(rows) < len(findings) else ''}")


def _trial(trial: Trial, name: str, console: Console) -> None:
    often = sorted(trial.rewards.items(), key=lambda item: -item[1])[:LISTED]
    rewards = ", ".join(f"{reward} ({count})" for reward, count in often) or "none"
    each = 1000 * trial.seconds / max(1, trial.answers)
    console.print(f"{escape(name)}: {trial.answers} answers, {each:.2g} ms each; rewards: {rewards}")
    if trial.given_up:
        console.print(f"  [yellow]given up after {trial.hangs} answers without an end[/]")
    if trial.rewards and trial.rows and not trial.told_apart:
        told = "no row's own answer got a higher reward than a wrong one; look at answers with python -m sdpo.cli.grade"
        console.print(f"  [yellow]{told}[/]")
    for where, lines in list(trial.printed.items())[:LISTED]:
        console.print(f"  [yellow]{escape(where)}: prints ({lines} times): into the logs of the workers in a run[/]")
