"""`python -m sdpo.cli.compare --out FOLDER [OVERRIDES...]`: SDPO against GRPO, or any two configurations.

Starts the runs (the same overrides for every arm and seed), stops each when its budget is spent, and writes
results.json, table.md, figures and index.html. With --from-runs it only reads: run folders, or
wandb:ENTITY/PROJECT/RUN_ID.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdpo.cli.numbers import positive, positive_whole
from sdpo.cli.output_file import writing
from sdpo.cli.program import program
from sdpo.errors import ConfigError, problem
from sdpo.reporting.comparison.curves import Budget, load_curve
from sdpo.reporting.comparison.figures import write_figures
from sdpo.reporting.comparison.launch import Arm, Plan, run_all
from sdpo.reporting.comparison.summary import TARGETS, Comparison, compare
from sdpo.reporting.comparison.tables import comparison_page, markdown
from sdpo.tracking.jsonl import write_atomically


@program
def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    with writing(options.out, "--out"):
        options.out.mkdir(parents=True, exist_ok=True)
    try:
        runs = (options.from_runs, options.tuning_runs) if options.from_runs else run_all(_plan(options))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the runs that are missing", file=sys.stderr)
        return 130
    curves, tuning = ([load_curve(source, options.source) for source in sources] for sources in runs)
    budget = Budget(options.seconds, options.samples)
    write(compare(curves, budget, options.targets, options.title, _about(options), tuning), options.out)
    return 0


def write(comparison: Comparison, out: Path) -> None:
    with writing(out, "--out"):
        write_atomically(out / "results.json", json.dumps(comparison.as_json(), indent=1) + "\n")
        write_atomically(out / "table.md", markdown(comparison))
        write_atomically(out / "index.html", comparison_page(comparison))
        write_figures(comparison, out)
    print(markdown(comparison))
    print(out / "index.html")


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.compare", description=__doc__, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", help="settings of every run, as for sdpo.main_sdpo")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and the results")
    parser.add_argument("--from-runs", nargs="+", metavar="RUN", help="compare these instead of running any")
    parser.add_argument("--seconds", type=positive, help="budget: training seconds, without start-up and validation")
    parser.add_argument("--samples", type=positive_whole, help="budget: responses sampled")
    parser.add_argument(
        "--arm",
        action="append",
        dest="arms",
        metavar="ROOT[:KEY=VALUE,...]",
        help="a root configuration with overrides of its own; give one for each arm (default: sdpo and baseline_grpo)",
    )
    parser.add_argument("--seeds", type=_list(int), default=[0, 1, 2], metavar="0,1,2")
    parser.add_argument("--rates", type=_list(_rate), default=[], metavar="5e-4,1e-3", help="learning rates to try")
    parser.add_argument("--tuning-seed", type=int, help="seed that rates are tried on (default: one above --seeds)")
    parser.add_argument(
        "--tuning",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of the runs that try rates alone: data.val_files=[FILE], held-out problems that are not reported",
    )
    parser.add_argument("--tuning-runs", nargs="+", default=[], metavar="RUN", help="with --from-runs: those")
    parser.add_argument("--jobs", type=positive_whole, default=1, help="runs at once; more than 1 spoils the clock")
    parser.add_argument("--source", help="data source whose accuracy counts; the others are retention")
    parser.add_argument("--targets", type=_list(float), default=list(TARGETS), metavar="0.5,0.8", help="to reach")
    parser.add_argument("--title", default="Held-out accuracy")
    options = parser.parse_intermixed_args(argv)
    options.arms = options.arms or ["sdpo", "baseline_grpo"]
    if options.tuning_seed is None:
        options.tuning_seed = max(options.seeds) + 1
    if options.tuning_seed in options.seeds:
        raise ConfigError(problem("--tuning-seed", options.tuning_seed, "a seed that is not among --seeds"))
    if not options.from_runs and options.seconds is None and options.samples is None and not _has_steps(options):
        raise ConfigError("a comparison needs an end: --seconds, --samples, or trainer.total_training_steps=N")
    return options


def _list(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Values separated by commas."""

    def parse(text: str) -> list[Any]:
        values = [kind(part) for part in text.split(",")]
        if len({float(value) for value in values}) < len(values):
            raise argparse.ArgumentTypeError(f"{text}: a value stands there twice")
        return values

    parse.__name__ = f"list of {kind.__name__.removeprefix('_')}"  # argparse shows it
    return parse


def _rate(text: str) -> str:
    """A learning rate as written; ValueError when it is no number."""
    float(text)
    return text


def _has_steps(options: argparse.Namespace) -> bool:
    return any("total_training_steps=" in text for text in [*options.overrides, *options.arms])


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(
        arms=[Arm.parse(text) for text in options.arms],
        overrides=options.overrides,
        seeds=options.seeds,
        rates=options.rates,
        budget=Budget(options.seconds, options.samples),
        out=options.out,
        source=options.source,
        tuning_seed=options.tuning_seed,
        tuning=options.tuning,
        jobs=options.jobs,
    )


def _about(options: argparse.Namespace) -> dict[str, str]:
    if options.from_runs:
        return {"read from": ", ".join(str(run) for run in options.from_runs)}
    return {
        "settings": " ".join(options.overrides),
        "arms": " ".join(options.arms),
        **({"runs that try rates": " ".join(options.tuning) or "the same settings"} if len(options.rates) > 1 else {}),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "runs at once": str(options.jobs),
    }


if __name__ == "__main__":
    sys.exit(main())
