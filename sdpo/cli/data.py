"""Data sets: check a file before training on it, or make one from a publisher's format.

    python -m sdpo.cli.data check FILE [--model MODEL] [--against FILE] [--grade] [KEY=VALUE ...]
    python -m sdpo.cli.data prepare NAME [SOURCE] [OUT_DIR]

Exit code 0: done, and nothing to object to; 1: the check found rows that need a decision; 3: a file cannot be used;
2: a wrong option or setting; 4: no such model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from sdpo.cli.output_file import make_writable, writing
from sdpo.cli.program import program
from sdpo.records import Prompt

FOUND_FAULTS = 1
HUB = "hub"
_LISTED = 5  # dropped rows printed; the manifest has all


@program
def main(argv: list[str] | None = None) -> int:
    """Returns 0, or the exit code of the error that was printed."""
    parser = _parser()
    # argparse gives up on KEY=VALUE behind an option: what it leaves over is taken here.
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command != "check" or not all("=" in text and not text.startswith("-") for text in rest):
        arguments = parser.parse_args(argv)
    else:
        arguments.overrides += rest
    return _check(arguments) if arguments.command == "check" else _prepare(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="schema, lengths, ungradable answers, duplicates, overlap")
    check.add_argument("file", help="file, folder[:SPLIT], hub://OWNER/NAME@COMMIT:SPLIT or builtin://...")
    check.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, e.g. data.max_prompt_length=1024")
    check.add_argument("--model", help="folder or hub id: lengths in tokens, under its chat template")
    check.add_argument("--against", metavar="FILE", help="another file that must not hold the same questions")
    check.add_argument(
        "--grade",
        action="store_true",
        help="grade right and wrong answers made from every row; custom_reward_function.path=FILE: by your function",
    )
    check.add_argument("--json", type=Path, metavar="FILE", help="also write everything that was found")
    prepare = commands.add_parser("prepare", help="convert a data set from its publisher's format to parquet")
    prepare.add_argument("name", help="one of those in docs/data.md, e.g. gsm8k")
    prepare.add_argument(
        "source", nargs="?", default=HUB, help="file or folder in the publisher's format; default: hub"
    )
    prepare.add_argument(
        "out_dir",
        nargs="?",
        type=Path,
        help="gets parquet files and manifest.json ($SDPO_DATA_DIR/NAME, datasets/NAME)",
    )
    prepare.add_argument("--revision", help="commit, tag or branch of the hub; the manifest names the commit")
    prepare.add_argument("--split", choices=["source", "questions", "tests"], help="how to divide into train and test")
    prepare.add_argument("--train-fraction", type=float, help="share of the questions (0.9) or of the tests (0.5)")
    prepare.add_argument("--seed", type=int, default=0, help="of that division (default %(default)s)")
    prepare.add_argument("--first-date", help="keep rows from this day on, e.g. 2025-02-01 (sources with dates)")
    prepare.add_argument("--last-date", help="keep rows up to the end of this day")
    return parser


def _check(arguments: argparse.Namespace) -> int:
    from sdpo.cli.data_check import inspect
    from sdpo.cli.data_report import print_inspection
    from sdpo.config.compose import compose
    from sdpo.config.files import check_reward_function
    from sdpo.config.validate import check_single_values

    config = compose(["model=custom", "task=custom", *arguments.overrides])
    check_single_values(config)
    check_reward_function(config)
    if arguments.json:
        make_writable(arguments.json, "--json")
    count_tokens = _token_counter(arguments.model, config) if arguments.model else None
    found = inspect(arguments.file, config, count_tokens, arguments.against, arguments.grade)
    print_inspection(arguments.file, found, config)
    if arguments.json:
        everything = asdict(found) | {"lengths": list(found.lengths)}
        with writing(arguments.json, "--json"):
            arguments.json.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return FOUND_FAULTS if found.faulty else 0


def _token_counter(model: str, config: object) -> Callable[[Prompt], int]:
    from sdpo.config.schema import Config, ModelConfig
    from sdpo.models.load import load_chat

    assert isinstance(config, Config)
    config.actor_rollout_ref.model = ModelConfig(path=model, trust_remote_code=config.data.trust_remote_code)
    chat = load_chat(config)
    return lambda prompt: len(chat.student_ids(prompt))


def _prepare(arguments: argparse.Namespace) -> int:
    from sdpo.data.prepare.write import Selection, prepare
    from sdpo.data.window import DateWindow

    window = DateWindow.parse(arguments.first_date, arguments.last_date)
    selection = Selection(arguments.train_fraction, arguments.seed, window, arguments.split)
    out_dir = arguments.out_dir or Path(os.environ.get("SDPO_DATA_DIR") or "datasets") / arguments.name
    source = None if arguments.source == HUB else Path(arguments.source)
    with writing(out_dir, "output folder"):
        prepared = prepare(arguments.name, source, out_dir, selection, arguments.revision)
    for name, rows in sorted(prepared.rows.items()):
        print(f"{out_dir / name}: {rows} rows")
    if prepared.outside_window:
        print(f"left out {prepared.outside_window} rows outside of the window of dates")
    if prepared.not_selected:
        print(f"left out {prepared.not_selected} rows of other kinds")
    if prepared.dropped:
        print(f"dropped {len(prepared.dropped)} rows that cannot be used (all are listed in manifest.json):")
        for entry in prepared.dropped[:_LISTED]:
            print(f"  {entry['file']} row {entry['row']}: {entry['why']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
