"""`python -m sdpo.cli.export RUN`: the weights of a step as a folder that other tools load, with a model card.

python -m sdpo.cli.export RUN                            the last checkpoint: a model, or the adapter that was trained
python -m sdpo.cli.export RUN --step best --merged       an adapter, added to copies of the weights it was trained on
python -m sdpo.cli.export RUN --push OWNER/NAME --dry-run  what would be published
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from sdpo.cli.hub_push import published, push
from sdpo.cli.program import program
from sdpo.config.limits import CHOICES
from sdpo.errors import ConfigError, problem

DTYPES = CHOICES["trainer.export_dtype"]
MAX_DIFF = 0.5  # nats


@program
def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    _check(arguments)
    from sdpo.models.export import give_folder_rights
    from sdpo.reporting.model_card import write_card
    from sdpo.training.export_step import export_step

    run, out = Path(arguments.run), arguments.out and Path(os.path.abspath(arguments.out))
    made = export_step(run, arguments.step, arguments.merged, arguments.dtype, out, arguments.max_diff)
    write_card(made.folder, run, made.config, made.step, made.kind, made.merge_diff)
    give_folder_rights(made.folder)
    print(f"{made.folder}: {made.kind} of step {made.step}")
    if made.merge_diff is not None:
        print(f"largest log-prob difference to the adapter form: {made.merge_diff:.2g} nats")
    if arguments.dry_run:
        print(f"would be published as {arguments.push}, {'public' if arguments.public else 'private'}:")
        for name, file in published(made.folder).items():
            print(f"{file.stat().st_size:>14,} {name}")
    elif arguments.push:
        print(push(made.folder, arguments.push, arguments.public))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.export",
        description="Write the weights of a step as a Hugging Face folder, or its adapter in PEFT's format.",
    )
    parser.add_argument("run", help="folder of a run (trainer.default_local_dir)")
    parser.add_argument("--step", default="last", help="a number, last (the newest checkpoint) or best; default: last")
    parser.add_argument("--merged", action="store_true", help="of an adapter: the whole model, with the adapter added")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: that of the model that was trained")
    parser.add_argument("--out", help="folder, new or an earlier export; default: export/step_N in the run's folder")
    parser.add_argument(
        "--max-diff",
        type=float,
        default=MAX_DIFF,
        help=f"nats that rounding may cost when merging; default: {MAX_DIFF}",
    )
    parser.add_argument("--push", metavar="OWNER/NAME", help="publish on the hub, in a private repository")
    parser.add_argument("--public", action="store_true", help="with --push: in a public one")
    parser.add_argument("--dry-run", action="store_true", help="with --push: only say what would be published")
    return parser


def _check(arguments: argparse.Namespace) -> None:
    if not re.fullmatch(r"last|best|\d+", arguments.step):
        raise ConfigError(problem("--step", arguments.step, "a number, last or best"))
    if arguments.push is not None and not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", arguments.push):
        raise ConfigError(problem("--push", arguments.push, "OWNER/NAME"))
    for name in ("public", "dry_run"):
        if getattr(arguments, name) and arguments.push is None:
            raise ConfigError(problem(f"--{name.replace('_', '-')}", True, "only with --push OWNER/NAME"))
    if arguments.out and not _may_be_replaced(Path(arguments.out)):
        fix = "what is there would be deleted"
        raise ConfigError(problem("--out", arguments.out, "a new or empty folder, or an earlier export", fix))
    if not (Path(arguments.run) / "resolved_config.yaml").is_file():
        raise ConfigError(problem("run", arguments.run, "the folder of a run", "there is no resolved_config.yaml"))


def _may_be_replaced(out: Path) -> bool:
    if not out.is_dir():
        return not out.exists()
    files, card = {file for file in out.rglob("*") if not file.is_dir()}, out / "README.md"
    made_here = card.is_file() and "\n- sdpo\n" in card.read_text(encoding="utf-8", errors="replace")
    return not files or (made_here and files <= set(published(out).values()))


if __name__ == "__main__":
    sys.exit(main())
