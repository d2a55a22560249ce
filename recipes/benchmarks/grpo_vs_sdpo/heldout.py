"""Writes the benchmark's held-out file: three-step problems, and the one- and two-step problems that the model knows.

    python recipes/benchmarks/grpo_vs_sdpo/heldout.py FILE.jsonl [--first 0] [--problems 100] [--known 40]

The second hundred (--first 100) is for choosing learning rates. The known problems have the data source
`programs-known`, so that a validation reports them apart: what a run forgets.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from sdpo.data.rows import to_row
from sdpo.embedded.evaluate import shorter_problems
from sdpo.embedded.programs import problems

KNOWN = "programs-known"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--first", type=int, default=0, help="place of the first three-step problem, of 200")
    parser.add_argument("--problems", type=int, default=100, help="three-step problems")
    parser.add_argument("--known", type=int, default=40, help="one- and two-step problems, half each")
    options = parser.parse_args()
    prompts = problems("hard", "test")[options.first :][: options.problems]
    for length in (1, 2):
        prompts += [replace(p, data_source=KNOWN) for p in shorter_problems(length, options.known // 2)]
    options.file.parent.mkdir(parents=True, exist_ok=True)
    options.file.write_text("".join(json.dumps(to_row(prompt)) + "\n" for prompt in prompts), encoding="utf-8")


if __name__ == "__main__":
    main()
