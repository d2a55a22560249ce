"""`python -m sdpo.cli.compare RUN_DIR... --out FOLDER`: table, figure and JSON of runs on the same task.

With `--best` instead of `--out`: the learning rate with the highest final accuracy, for scripts."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sdpo.errors import SdpoError
from sdpo.tracking.compare import as_json, figure, load_curve, summarize, table


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run folders (trainer.default_local_dir)")
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--out", type=Path, help="folder for results.json, table.md and accuracy.png")
    wanted.add_argument("--best", action="store_true", help="print the best learning rate of one algorithm's runs")
    parser.add_argument("--title", default="Held-out accuracy")
    options = parser.parse_args(argv)
    try:
        curves = [load_curve(folder) for folder in options.runs]
    except SdpoError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    rows = summarize(curves)
    if options.best:
        print(f"{rows[0].learning_rate:g}")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(json.dumps(as_json(curves, rows), indent=1) + "\n")
    (options.out / "table.md").write_text(table(rows))
    figure(curves, rows, options.title, options.out / "accuracy.png")
    print(table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
