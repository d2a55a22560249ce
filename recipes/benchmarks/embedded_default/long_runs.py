"""Whether the embedded default holds what it has learnt: 500 steps, five seeds, every setting, last against best.

    python recipes/benchmarks/embedded_default/long_runs.py [--out runs/embedded_default] [--seeds 0,1,2,3,4]
        [--settings unseen,rare,easy,hard] [--steps 500] [OVERRIDES of sdpo.main_sdpo ...]

One run at a time, the first seed of every setting first. A run that was broken off goes on from its newest checkpoint,
one that has finished is not run again; `cells.jsonl` holds a line for each finished one, written anew after every run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sdpo.reporting.comparison.curves import load_curve
from sdpo.tracking.history import RunHistory
from sdpo.tracking.jsonl import write_atomically

SETTINGS = ("unseen", "rare", "easy", "hard")
ENOUGH = 0.02  # the last accuracy may be this far below the best


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="settings of every run")
    parser.add_argument("--out", type=Path, default=Path("runs/embedded_default"))
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(SETTINGS))
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_intermixed_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    cells = [(setting, seed) for seed in options.seeds for setting in options.settings]
    failed = [cell for cell in cells if not _run(*cell, options)]
    print(table(_write(options.out)))
    return 1 if failed else 0


def _run(setting: str, seed: int, options: argparse.Namespace) -> bool:
    folder = options.out / f"{setting}-seed{seed}"
    if not _finished(folder, options.steps):
        words = command(setting, seed, folder, options.steps, options.overrides)
        with (options.out / f"{folder.name}.log").open("a", encoding="utf-8") as log:
            code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT).returncode
        _write(options.out)
        print(f"{folder.name}: {'done' if code == 0 else f'exit code {code}, see {log.name}'}", flush=True)
        return code == 0
    return True


def command(setting: str, seed: int, folder: Path, steps: int, overrides: list[str]) -> list[str]:
    task = "easy" if setting == "easy" else "hard"  # the problems of `rare` and `unseen` are those of `hard`
    return [
        sys.executable, "-m", "sdpo.main_sdpo", f"model=tiny_{setting}", f"task=programs_{task}",
        "cluster=inline", "actor_rollout_ref.rollout.name=hf", "trainer.export_hf=false",
        "trainer.test_freq=20", "trainer.save_freq=20", "trainer.max_actor_ckpt_to_keep=1",
        *overrides,
        f"trainer.total_training_steps={steps}", f"data.seed={seed}", f"trainer.seed={seed}",
        f"trainer.default_local_dir={folder}",
    ]  # fmt: skip


def _finished(folder: Path, steps: int) -> bool:
    if not (folder / "metrics.jsonl").exists():
        return False
    history = RunHistory.load(folder)
    return history.state.get("status") == "finished" and history.rows[-1]["step"] >= steps


def cell(folder: Path) -> dict[str, Any]:
    """What a run came to."""
    curve, actor = load_curve(folder), RunHistory.load(folder).config["actor_rollout_ref"]["actor"]
    setting, _, seed = folder.name.rpartition("-seed")
    accuracies = [[p.step, round(p.accuracy, 4)] for p in curve.points]
    best = max(accuracies, key=lambda pair: pair[1])
    return {
        "setting": setting,
        "seed": int(seed),
        "learning_rate": curve.learning_rate,
        "teacher": actor["self_distillation"]["teacher_regularization"],
        "teacher_update_rate": actor["self_distillation"]["teacher_update_rate"],
        "best": best[1],
        "best_step": best[0],
        "last": accuracies[-1][1],
        "last_step": accuracies[-1][0],
        "below_best": round(best[1] - accuracies[-1][1], 4),
        "training_seconds": round(curve.points[-1].seconds),
        "accuracies": accuracies,
    }


def _write(out: Path) -> list[dict[str, Any]]:
    states = sorted(out.glob("*-seed*/run.json"))
    done = [path.parent for path in states if json.loads(path.read_text()).get("status") == "finished"]
    cells = [cell(folder) for folder in done]
    write_atomically(out / "cells.jsonl", "".join(json.dumps(row) + "\n" for row in cells))
    return cells


def table(cells: list[dict[str, Any]]) -> str:
    lines = ["| setting | seed | lr | teacher | best (step) | last (step) | |", "| --- " * 7 + "|"]
    for row in cells:
        verdict = "" if row["below_best"] <= ENOUGH else f"{row['below_best']:.3f} below its best"
        teacher = f"{row['teacher']} {row['teacher_update_rate']:g}"
        best, last = f"{row['best']:.3f} ({row['best_step']})", f"{row['last']:.3f} ({row['last_step']})"
        told = (row["setting"], str(row["seed"]), f"{row['learning_rate']:g}", teacher, best, last, verdict)
        lines.append("| " + " | ".join(told) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.exit(main())
