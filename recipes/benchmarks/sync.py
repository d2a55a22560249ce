"""Weight sync from trainer to engine on one machine: seconds and bytes to publish and to load.

python recipes/benchmarks/sync.py --model models/smollm2-135m --engine hf vllm
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path

from sdpo.config.environment import ENVIRONMENT

os.environ.update(ENVIRONMENT | dict(os.environ))

import torch
from transformers import PreTrainedModel

from sdpo.config.schema import Config
from sdpo.models.load import load_causal_lm
from sdpo.rollout.build import build_engine, engine_dtype
from sdpo.weights import shared_memory
from sdpo.weights.source import WeightSource
from sdpo.weights.transport import publish
from sdpo.weights.version import read_label


def measure(config: Config, lm: PreTrainedModel, repeats: int, device: str) -> dict:
    """Medians over `repeats` syncs, after one to warm up."""
    engine = build_engine(config, device)
    source = WeightSource(lm, engine_dtype(config, device))
    base = shared_memory.new_base()
    seconds: dict[str, list[float]] = {"publish": [], "load": []}
    for version in range(repeats + 1):
        start = time.perf_counter()
        folder = publish(source, base, version)
        published = time.perf_counter()
        asyncio.run(engine.load_weights(folder, version))
        loaded = time.perf_counter()
        if version:
            seconds["publish"].append(published - start)
            seconds["load"].append(loaded - published)
    size = read_label(folder).bytes
    engine.close()
    shared_memory.remove_base(base)
    return {name: statistics.median(found) for name, found in seconds.items()} | {"bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="models/smollm2-135m")
    parser.add_argument("--engine", nargs="+", default=["hf", "vllm"], choices=["hf", "vllm"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = Config()
    config.actor_rollout_ref.model.path = options.model
    config.data.max_prompt_length = config.data.max_response_length = 256
    config.actor_rollout_ref.rollout.max_num_seqs = 16
    lm = load_causal_lm(config.actor_rollout_ref.model, torch.float32).to(options.device)
    found = {}
    for engine in options.engine:
        config.actor_rollout_ref.rollout.name = engine
        found[engine] = row = measure(config, lm, options.repeats, options.device)
        rate = row["bytes"] / (row["publish"] + row["load"]) / 1e9
        print(
            f"{engine:<6}{row['bytes'] / 2**20:7.0f} MiB  publish {row['publish']:.3f} s  load {row['load']:.3f} s"
            f"  {rate:.2f} GB/s"
        )
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "engines": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
