"""Data sets to training files: `python -m sdpo.cli.data prepare NAME SOURCE OUT_DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sdpo.errors import SdpoError

_LISTED = 5  # dropped rows printed; the manifest has all


def main(argv: list[str] | None = None) -> int:
    """Returns 0, or the exit code of the error that was printed."""
    arguments = _parser().parse_args(argv)
    try:
        return _prepare(arguments)
    except SdpoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="convert a data set from its publisher's format to parquet")
    prepare.add_argument("name", help="sciknoweval | gsm8k | tooluse | humaneval")
    prepare.add_argument("source", type=Path, help="file, or folder with train and test files, also in subfolders")
    prepare.add_argument("out_dir", type=Path, help="gets the parquet files and manifest.json")
    prepare.add_argument("--train-fraction", type=float, help="divide each file by question into train and test")
    prepare.add_argument("--seed", type=int, default=0, help="of that division (default %(default)s)")
    prepare.add_argument("--first-date", help="keep rows from this day on, e.g. 2025-02-01 (sources with dates)")
    prepare.add_argument("--last-date", help="keep rows up to the end of this day")
    return parser


def _prepare(arguments: argparse.Namespace) -> int:
    from sdpo.data.prepare.write import Selection, prepare
    from sdpo.data.window import DateWindow

    window = DateWindow.parse(arguments.first_date, arguments.last_date)
    selection = Selection(arguments.train_fraction, arguments.seed, window)
    prepared = prepare(arguments.name, arguments.source, arguments.out_dir, selection)
    for name, rows in sorted(prepared.rows.items()):
        print(f"{arguments.out_dir / name}: {rows} rows")
    if prepared.outside_window:
        print(f"left out {prepared.outside_window} rows outside of the window of dates")
    if prepared.dropped:
        print(f"dropped {len(prepared.dropped)} rows that cannot be used (all are listed in manifest.json):")
        for entry in prepared.dropped[:_LISTED]:
            print(f"  {entry['file']} row {entry['row']}: {entry['why']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
