"""Arithmetic and memory traffic of a measured step, against what this machine reaches.

python recipes/benchmarks/step.py --json step.json && python recipes/benchmarks/roofline.py step.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from sdpo.config.environment import ENVIRONMENT

os.environ.update(ENVIRONMENT | dict(os.environ))

import torch
from transformers import AutoConfig, AutoModelForCausalLM

GIGA = 1e9


def best(work: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of the fastest call: what the machine can do."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def peaks() -> tuple[float, float]:
    """FLOP/s of a large float32 matrix product and bytes/s of memory, read or read and written, whichever is more."""
    size = 4096
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty_like(a)
    large = torch.ones(2**28)  # 1 GiB
    memory = max(large.nbytes / best(large.sum), 2 * large.nbytes / best(lambda: large.mul_(1.0)))
    return 2 * size**3 / best(lambda: torch.mm(a, b, out=out)), memory


def weights(folder: str) -> tuple[int, int]:
    """Entries of the layers' matrices and of the head."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    head = model.get_output_embeddings().weight.numel()
    tables = {id(m.weight): m.weight.numel() for m in (model.get_input_embeddings(), model.get_output_embeddings())}
    return sum(p.numel() for p in model.parameters()) - sum(tables.values()), head


def parts(tokens: dict[str, int], steps: int, layers: int, head: int) -> list[tuple[str, list[str], float, float]]:
    """(name, phases of `step.py`, FLOP of matrix products, bytes of weights, gradients and moments that have to pass
    through memory). Products with activations inside attention are left out: under 5 % here."""
    everything = 4 * (layers + head)
    n = tokens["response"]
    return [
        ("rollout", ["rollout"], 2 * layers * (n + tokens["prompt"]) + 2 * head * n, steps * everything),
        ("student forward", ["student forward"], 2 * layers * tokens["student"], 4 * layers),
        ("teacher forward", ["teacher forward"], 2 * layers * tokens["teacher"], 4 * layers),
        ("heads and loss", ["heads, loss and its gradient"], 8 * head * n, 4 * 4 * head),
        ("backward", ["backward and the rest"], 4 * layers * tokens["student"], 2 * everything),
        ("optimizer and teacher update", ["optimizer", "teacher update"], 0, (7 + 3) * everything),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path, help="what step.py --json has written")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = json.loads(options.result.read_text())
    run = result["runs"]["sdpo"]
    flops_peak, bytes_peak = peaks()
    print(f"peak {flops_peak / GIGA:.0f} GFLOP/s, {bytes_peak / GIGA:.1f} GB/s")
    rows = []
    for name, phases, flops, traffic in parts(run["tokens"], result["tokens"], *weights(result["model"])):
        seconds = sum(run["phases"].get(phase, 0.0) for phase in phases)
        bound = max(flops / flops_peak, traffic / bytes_peak)
        rows.append({"part": name, "flop": flops, "bytes": traffic, "seconds": seconds, "bound_seconds": bound})
    total = {key: sum(row[key] for row in rows) for key in ("flop", "bytes", "seconds", "bound_seconds")}
    for row in [*rows, {"part": "all", **total}]:
        share = row["bound_seconds"] / row["seconds"]
        print(
            f"{row['part']:<30}{row['flop'] / GIGA:8.0f} GFLOP{row['bytes'] / GIGA:7.1f} GB{row['seconds']:7.2f} s"
            f"  bound {row['bound_seconds']:6.2f} s  share {share:.2f}"
        )
    if options.json:
        peak = {"flop_per_second": flops_peak, "bytes_per_second": bytes_peak}
        options.json.write_text(json.dumps({"peak": peak, "parts": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
