"""One step off against in turn: seconds per step and held-out accuracy at equal samples, on the embedded default.

    python recipes/benchmarks/staleness.py [--out runs/staleness] [--seeds 0,1,2] [--steps 40]
        [--json FILE] [OVERRIDES of sdpo.main_sdpo ...]

Every seed with max_staleness=0 and 1, one run at a time, Ray and vLLM as in the default. A run that has finished
is not run again, one that was broken off goes on from its newest checkpoint. The JSON holds an entry per run and the
means; the first two steps, in which engines warm up, are in no time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from sdpo.tracking.history import RunHistory

WARM_UP = 2  # steps


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="settings of every run")
    parser.add_argument("--out", type=Path, default=Path("runs/staleness"))
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", type=Path, help="default: results.json in the folder of --out")
    options = parser.parse_intermixed_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for seed in options.seeds:
        for staleness in (0, 1):
            failed += not _run(seed, staleness, options)
            results = summary(options.out)
            (options.json or options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["means"], indent=1))
    return 1 if failed else 0


def _run(seed: int, staleness: int, options: argparse.Namespace) -> bool:
    folder = options.out / f"staleness{staleness}-seed{seed}"
    if _finished(folder, options.steps):
        return True
    with (options.out / f"{folder.name}.log").open("a", encoding="utf-8") as log:
        words = command(seed, staleness, folder, options.steps, options.overrides)
        code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT).returncode
    print(f"{folder.name}: {'done' if code == 0 else f'exit code {code}, see {log.name}'}", flush=True)
    return code == 0


def command(seed: int, staleness: int, folder: Path, steps: int, overrides: list[str]) -> list[str]:
    return [
        sys.executable, "-m", "sdpo.main_sdpo",
        f"actor_rollout_ref.rollout.max_staleness={staleness}", f"data.seed={seed}",
        f"trainer.total_training_steps={steps}", "trainer.test_freq=10", "trainer.save_freq=10",
        "trainer.max_actor_ckpt_to_keep=1", "trainer.export_hf=false", f"trainer.default_local_dir={folder}",
        *overrides,
    ]  # fmt: skip


def _finished(folder: Path, steps: int) -> bool:
    if not (folder / "metrics.jsonl").is_file():
        return False
    history = RunHistory.load(folder)
    return history.state.get("status") == "finished" and history.rows[-1]["step"] == steps


def summary(out: Path) -> dict[str, Any]:
    runs = [cell(folder) for folder in sorted(out.glob("staleness*-seed*")) if (folder / "metrics.jsonl").is_file()]
    means = {}
    for staleness in sorted({run["max_staleness"] for run in runs}):
        own = [run for run in runs if run["max_staleness"] == staleness and run["status"] == "finished"]
        if own:
            names = ("seconds_per_step", "accuracy_last", "accuracy_mean")
            means[f"max_staleness={staleness}"] = {name: statistics.mean(run[name] for run in own) for name in names}
            means[f"max_staleness={staleness}"]["runs"] = len(own)
    return {"runs": runs, "means": means}


def cell(folder: Path) -> dict[str, Any]:
    """`seconds_per_step`: rollout, update and sync, median; validation and checkpoints are the same for both."""
    history = RunHistory.load(folder)
    staleness, _, seed = folder.name.removeprefix("staleness").partition("-seed")
    phases = [dict(history.series(f"timing/{phase}_s")) for phase in ("rollout", "update", "sync")]
    steps = [step for step in phases[1] if step > WARM_UP]
    curve = history.series(history.validation_name) if history.validation_name else []
    return {
        "max_staleness": int(staleness),
        "seed": int(seed),
        "status": history.state.get("status"),
        "samples": history.last("train/samples"),
        "seconds_per_step": statistics.median(sum(p.get(s, 0.0) for p in phases) for s in steps) if steps else None,
        "staleness_mean": statistics.mean(v for _, v in history.series("rollout/staleness") or [(0, 0.0)]),
        "accuracy": curve,
        "accuracy_last": curve[-1][1] if curve else None,
        "accuracy_mean": statistics.mean(v for _, v in curve) if curve else None,
    }


if __name__ == "__main__":
    sys.exit(main())
