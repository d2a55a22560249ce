"""`python -m sdpo.cli.report RUN_DIR...`: rebuilds report.html from a run's files, also when it was broken off."""

from __future__ import annotations

import argparse
import sys

from sdpo.errors import SdpoError
from sdpo.reporting.report import write_report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.report", description="Rebuild report.html of run folders."
    )
    parser.add_argument("run_dir", nargs="+", help="folder with metrics.jsonl (trainer.default_local_dir of a run)")
    arguments = parser.parse_args(argv)
    try:
        for run_dir in arguments.run_dir:
            print(write_report(run_dir))
    except SdpoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
