"""The update of a Ray run beside the same update inline, in turns: what it costs to be in a process of its own.

python recipes/benchmarks/cores.py --models builtin://tiny/hard models/smollm2-135m --json docs/figures/cores.json

Both sides get the cores that a run gives them (`sdpo/workers/cores.py`); OMP_NUM_THREADS must not be set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sdpo.config.environment import ENVIRONMENT

os.environ.update(ENVIRONMENT | dict(os.environ))

import step_case as case

from sdpo.config.schema import Config
from sdpo.models.load import load_chat
from sdpo.records import MiniBatch, TrainBatch, TrainRow


def settings(model: str, folder: str) -> Config:
    config = Config()
    config.trainer.default_local_dir, config.trainer.logger, config.grading.workers = folder, [], 1
    config.data.max_prompt_length = config.data.max_response_length = 512
    parts = config.actor_rollout_ref
    parts.model.path, parts.rollout.name = model, "hf"
    parts.actor.optim.lr = case.LEARNING_RATE
    parts.actor.self_distillation.distillation_topk = case.TOP_K
    parts.actor.ppo_max_token_len_per_gpu = 1024
    return config


def batch_of(config: Config, responses: int, tokens: int) -> TrainBatch:
    """Groups whose teacher is told the feedback; responses are cut from the prompts' own tokens."""
    chat, rows = load_chat(config), []
    for number, (prompt, feedback) in enumerate(zip(case.PROMPTS, case.FEEDBACK, strict=True)):
        asked = chat.prompt_ids([{"role": "user", "content": prompt}])
        told = chat.prompt_ids([{"role": "user", "content": f"{prompt}\n{feedback}"}])
        for index in range(responses):
            answer = [*asked[index:], *told, *asked][:tokens]
            log_probs = [-1.0] * len(answer)
            rows.append(TrainRow.single_turn(f"p{number}", index, asked, answer, told, sampler_logprobs=log_probs))
    return TrainBatch([MiniBatch(rows)])


def compare(model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Medians of updates that take turns, after one of each to warm up."""
    from sdpo.workers.inline_group import InlineWorkers
    from sdpo.workers.ray_group import RayWorkers

    seconds: dict[str, list[float]] = {"inline": [], "ray": []}
    with tempfile.TemporaryDirectory() as folder:
        config = settings(model, folder)
        batch = batch_of(config, options.responses, options.tokens)
        inline = InlineWorkers(config, "cpu", 1000)
        config.ray_kwargs.ray_init.num_cpus = options.ray_cores
        sides = {"inline": inline, "ray": RayWorkers(config, "cpu", 1000)}
        for repeat in range(options.repeats + 1):
            for name, workers in sides.items():
                start = time.perf_counter()
                workers.update(batch)
                if repeat:
                    seconds[name].append(time.perf_counter() - start)
        for workers in sides.values():
            workers.close()
    median = {name: statistics.median(found) for name, found in seconds.items()}
    turns = [ray / here for ray, here in zip(seconds["ray"], seconds["inline"], strict=True)]
    share = statistics.median(turns)
    print(f"{model}: inline {median['inline']:.3f} s, ray {median['ray']:.3f} s, turn by turn {share:.2f}", flush=True)
    return {"model": model, **median, "share": share, "all_seconds": seconds, "load": os.getloadavg()[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["builtin://tiny/hard", case.MODEL])
    parser.add_argument("--responses", type=int, default=case.RESPONSES, help="to each of the four prompts")
    parser.add_argument("--tokens", type=int, default=case.RESPONSE_TOKENS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ray-cores", type=int, help="of the Ray side; as many as a run gives it where not set")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [compare(model, options) for model in options.models]
    if options.json:
        machine = {"processor": case.processor(), "cores": len(os.sched_getaffinity(0))}
        options.json.write_text(json.dumps(machine | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
