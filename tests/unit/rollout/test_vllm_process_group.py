"""vLLM beside a trainer that already talks to other ranks. Slow: the engine gets processes of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM"),
]

SCRIPT = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from sdpo.config.schema import RolloutConfig
from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all
from sdpo.rollout.vllm_engine import VllmEngine

def rank(rank, world, store, folder):
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    if rank == 0:
        engine = VllmEngine(folder, RolloutConfig(max_num_seqs=8), 50, 50, "cpu", (2,))
        done = draw_all(engine, [GenerationRequest("a", [1, 5], SamplingSpec(max_tokens=9, ignore_eos=True))])
        print("ids", done["a"].response_ids, flush=True)
        engine.close()
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", total.item(), flush=True)

if __name__ == "__main__":
    world, store, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    mp.start_processes(rank, args=(world, store, folder), nprocs=world, start_method="spawn")
"""


def answers(world: int, folder: str, tmp_path: Path) -> list[str]:
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(world), str(tmp_path / f"store{world}"), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(("ids", "sum"))]


def test_the_engine_answers_alike_and_leaves_the_trainers_process_group_alive(llama_folder, tmp_path):
    alone, beside = answers(1, llama_folder, tmp_path), answers(2, llama_folder, tmp_path)
    assert alone[1:] == ["sum 1.0"]
    assert beside[1:] == ["sum 2.0"] * 2
    assert alone[0] == beside[0]
