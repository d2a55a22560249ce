"""`python -m sdpo.cli.report RUN_DIR...`: rebuilds report.html from a run's files, also when it was broken off."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sdpo.cli.output_file import writing
from sdpo.cli.program import program
from sdpo.reporting.report import write_report


@program
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sdpo.cli.report", description="Rebuild report.html of run folders."
    )
    parser.add_argument("run_dir", nargs="+", help="folder with metrics.jsonl (trainer.default_local_dir of a run)")
    arguments = parser.parse_args(argv)
    for run_dir in arguments.run_dir:
        with writing(Path(run_dir), "run_dir"):
            report = write_report(run_dir)
        print(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
