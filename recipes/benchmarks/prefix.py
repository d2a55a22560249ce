"""Prompts once for student and teacher, against a padded row for every response: one forward and backward pass of each.

python recipes/benchmarks/prefix.py --model models/smollm2-135m --json prefix.json

On a GPU in half precision the tree's attention is `torch.nn.attention.varlen`, elsewhere SDPA.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from sdpo.config.environment import ENVIRONMENT

os.environ.update(ENVIRONMENT | dict(os.environ))

import torch
from step_case import resident

from sdpo.config.schema import Config
from sdpo.models.forward import PolicyModule
from sdpo.models.load import load_causal_lm
from sdpo.tokens.packing import PackedSide, pack_responses

MIB = 2**20


def one_pass(module: PolicyModule, side: PackedSide, device: str) -> tuple[float, torch.Tensor]:
    """Seconds, and the hidden states."""
    module.zero_grad(set_to_none=True)
    start = time.perf_counter()
    hidden = module(side)
    hidden.float().square().mean().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start, hidden.detach()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    config = Config()
    config.actor_rollout_ref.model.path = options.model
    lm = load_causal_lm(config.actor_rollout_ref.model, getattr(torch, options.dtype)).to(options.device)
    module = PolicyModule(lm, lm.config.vocab_size)
    generator = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(0, 200, (count,), generator=generator).tolist()

    prompts = [prompt for prompt in (ids(options.prompt) for _ in range(options.groups)) for _ in range(options.n)]
    responses = [ids(options.tokens) for _ in prompts]
    sides = {
        name: pack_responses(prompts, responses, padded).to(options.device)
        for name, padded in (("shared", module.prefix_sharing_unsupported is not None), ("padded", True))
    }
    rows: dict[str, Any] = {}
    hidden = {name: one_pass(module, side, options.device)[1] for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, side in sides.items():
            if options.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds[name].append(one_pass(module, side, options.device)[0])
            peak = torch.cuda.max_memory_allocated() if options.device == "cuda" else resident("VmHWM")
            rows[name] = {"tokens": side.input_ids.numel(), "peak_mib": peak / MIB}
    for name, found in seconds.items():
        rows[name] |= {"seconds": statistics.median(found)}
        print(f"{name:<8}{rows[name]['tokens']:>8} tokens{rows[name]['seconds']:>9.3f} s", flush=True)
    apart = (hidden["shared"].float() - hidden["padded"].float()).abs().max() / hidden["padded"].float().abs().max()
    half = options.dtype in ("bfloat16", "float16")
    return {
        "model": options.model,
        "dtype": options.dtype,
        "attention": "varlen" if options.device == "cuda" and half else "sdpa",
        "unsupported": module.prefix_sharing_unsupported,
        "largest_difference": float(apart),
        **rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="builtin://tiny/hard")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--n", type=int, default=8, help="responses of a group")
    parser.add_argument("--prompt", type=int, default=256, help="its tokens")
    parser.add_argument("--tokens", type=int, default=64, help="of a response")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
