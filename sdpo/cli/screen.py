"""`python -m sdpo.cli.screen [OVERRIDES...]`: before training, will SDPO help this model on this task?

Takes the arguments of sdpo.main_sdpo. Measures the student, and the same model as teacher under each context, and
predicts the gain. One process; nothing is trained."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sdpo.cli.numbers import positive_whole
from sdpo.cli.output_file import make_writable, writing
from sdpo.cli.program import program

if TYPE_CHECKING:
    from sdpo.screening.measure import Rate, Screening
    from sdpo.screening.verdict import Verdict


@program
def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    from sdpo.config import compose
    from sdpo.config.environment import ENVIRONMENT
    from sdpo.config.validate import validate
    from sdpo.reprompt.templates import check_templates

    config = compose.compose(options.overrides, options.config_name, options.config_dir)
    validate(config)
    settings = config.actor_rollout_ref.actor.self_distillation
    check_templates(settings)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    from sdpo.screening.measure import screen
    from sdpo.screening.verdict import judge

    if options.json:
        make_writable(options.json, "--json")
    started = time.monotonic()
    found = screen(
        config,
        options.part,
        options.problems,
        options.per_problem,
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    verdict = judge(found, settings)
    print(report(found, verdict))
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    if options.json:
        with writing(options.json, "--json"):
            text = json.dumps({"screening": asdict(found), "verdict": asdict(verdict)}, indent=1)
            options.json.write_text(text + "\n")
    return 0


def report(found: Screening, verdict: Verdict) -> str:
    lines = [
        f"student       {_rate(found.student)}   ({found.problems} problems, {found.answers} answers)",
        f"mean reward   {_rate(found.reward)}",
        f"groups        {found.solved_group_frac:.0%} with a success, {found.mixed_group_frac:.0%} mixed",
        f"answers       {found.truncated_frac:.0%} cut, {found.ungraded_frac:.0%} not graded",
        "",
        f"{'teacher sees':<14}{'answers with it':>16}{'student there':>17}{'teacher':>17}{'gap over all':>18}"
        f"{'mean reward':>17}{'cut':>6}{'not graded':>12}",
    ]
    for context in found.contexts:
        student, teacher, gap, reward = map(_rate, (context.student, context.teacher, context.gap, context.reward))
        lines.append(
            f"{context.name:<14}{context.coverage:>16.0%}{student:>17}{teacher:>17}{gap:>18}{reward:>17}"
            f"{context.truncated_frac:>6.0%}{context.ungraded_frac:>12.0%}"
        )
    word = {True: "SDPO should help", False: "SDPO will not help", None: "no verdict"}[verdict.helps]
    gain = f": expected gain {verdict.gain[0]:+.2f} to {verdict.gain[1]:+.2f} in accuracy" if verdict.gain else ""
    return "\n".join([*lines, "", word + gain, *(f"- {reason}" for reason in verdict.reasons)])


def _rate(rate: Rate | None) -> str:
    return str(rate) if rate else "–"


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.screen", description=__doc__, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", help="settings, as for sdpo.main_sdpo")
    parser.add_argument("-cn", "--config-name", default="sdpo")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("--part", choices=("train", "val"), default="train", help="which problems (default: train)")
    parser.add_argument("--problems", type=positive_whole, default=64, help="how many, by data.seed (default: 64)")
    parser.add_argument(
        "--per-problem", type=positive_whole, default=2, help="teacher's answers per problem and context (default: 2)"
    )
    parser.add_argument("--json", type=Path, help="write everything here, too")
    return parser.parse_intermixed_args(argv)


if __name__ == "__main__":
    sys.exit(main())
