"""How much code stands between the command line and the gradient of an SDPO step, counted while one is taken.

    python recipes/benchmarks/way_to_gradient.py [--json FILE]

*Way*: the functions of the package on the call stack when the first gradient is written. *Called*: those that ran since
the controller handed the rows over, which make tensors, logits and the loss of them. Lines are those of whole files,
blank ones and comments included, and those of the functions alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import sdpo
from sdpo import main_sdpo
from sdpo.kernels.head_gradient import HeadGradient

ROOT = Path(sdpo.__file__).parent
HANDED_OVER = "InlineWorkers.update"
STEP = [
    "cluster=inline",
    "actor_rollout_ref.rollout.name=hf",
    "trainer.total_training_steps=1",
    "trainer.val_before_train=false",
    "trainer.test_freq=0",
    "trainer.save_freq=0",
    "trainer.export_hf=false",
    "data.train_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
]


def traced() -> tuple[list[CodeType], set[CodeType]]:
    """(the way, outermost first; what was called on it)."""
    way: list[CodeType] = []
    called: set[CodeType] = set()
    write = HeadGradient.add

    def written(gradient: HeadGradient, *args: Any) -> None:
        if not way:
            sys.setprofile(None)
            way.extend(frame.f_code for frame, _ in traceback.walk_stack(sys._getframe()) if _ours(frame.f_code))
        write(gradient, *args)

    def entered(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and _ours(frame.f_code):
            if frame.f_code.co_qualname == HANDED_OVER:
                called.clear()
            called.add(frame.f_code)

    HeadGradient.add = written  # type: ignore[method-assign]
    sys.setprofile(entered)
    try:
        with tempfile.TemporaryDirectory() as folder:
            main_sdpo.main([*STEP, f"trainer.default_local_dir={folder}"])
    finally:
        sys.setprofile(None)
        HeadGradient.add = write  # type: ignore[method-assign]
    return way[::-1], called


def _ours(code: CodeType) -> bool:
    return ROOT in Path(code.co_filename).parents


def counted(codes: Iterable[CodeType]) -> dict[str, Any]:
    """By file, in the order of first use."""
    functions: dict[str, dict[str, int]] = {}
    for code in codes:
        if not code.co_name.startswith("<"):
            last = max(line for *_, line in code.co_lines() if line)
            name = Path(code.co_filename).relative_to(ROOT).as_posix()
            functions.setdefault(name, {})[code.co_qualname] = last - code.co_firstlineno + 1
    lines = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in functions}
    return {
        "files": len(lines),
        "lines_of_files": sum(lines.values()),
        "functions": sum(map(len, functions.values())),
        "lines_of_functions": sum(sum(own.values()) for own in functions.values()),
        "by_file": {name: {"lines": lines[name], "functions": list(own)} for name, own in functions.items()},
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    way, called = traced()
    result = {"way": counted(way), "called": counted(called - set(way))}
    for name, count in result.items():
        totals = f"{count['files']} files with {count['lines_of_files']:,} lines"
        print(f"{name}: {totals}; {count['functions']} functions with {count['lines_of_functions']:,}")
        for file, own in count["by_file"].items():
            print(f"    {file:<32} {own['lines']:>4}  {', '.join(own['functions'])[:80]}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
