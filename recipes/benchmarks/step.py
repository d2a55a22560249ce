"""Time and memory of one whole training step: rollout, batch, forward passes, loss, backward, optimizer, teacher.

python recipes/benchmarks/step.py                             # this program alone
python recipes/benchmarks/step.py --trl TRL_VENV/bin/python   # and TRL's SDPOTrainer, in turns
python recipes/benchmarks/step.py --one-file                  # and the one-file example
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import step_case as case

from sdpo.config.environment import ENVIRONMENT
from sdpo.config.schema import Config

MIB = 2**20


def settings(options: argparse.Namespace, folder: str) -> Config:
    config = Config(cluster="inline")
    config.trainer.default_local_dir = folder
    config.data.max_prompt_length, config.data.max_response_length = 512, options.tokens
    parts = config.actor_rollout_ref
    parts.model.path = options.model
    parts.model.enable_gradient_checkpointing = options.checkpointing
    parts.rollout.name, parts.rollout.n, parts.rollout.ignore_eos = options.engine, options.responses, True
    parts.rollout.max_num_seqs = len(case.PROMPTS) * options.responses
    parts.actor.fsdp_config.param_dtype = options.dtype
    parts.actor.policy_loss.loss_mode = options.algorithm
    parts.actor.ppo_mini_batch_size = len(case.PROMPTS)
    parts.actor.ppo_max_token_len_per_gpu = options.tokens_per_pass
    parts.actor.optim.lr = case.LEARNING_RATE
    parts.actor.self_distillation.teacher_offload = options.offload
    parts.actor.fsdp_config.optimizer_offload = options.offload
    distillation = parts.actor.self_distillation
    distillation.distillation_topk, distillation.alpha = case.TOP_K, case.ALPHA
    distillation.teacher_update_rate = case.RATE
    return config


class Trainer:
    """The parts of a run that a step is made of, without its log and data files."""

    def __init__(self, options: argparse.Namespace, folder: str) -> None:
        from sdpo.algorithms.registry import build_algorithm
        from sdpo.models.load import load_tokenizer
        from sdpo.reprompt.builder import RepromptBuilder
        from sdpo.rollout.build import build_engine
        from sdpo.tokens.chat import ChatRenderer
        from sdpo.workers.actor import Actor

        self.config, self.signal, self.options = settings(options, folder), options.signal, options
        self.actor = Actor(self.config, 0, 1, options.device, total_steps=1000)
        shared = self.actor.student.lm if options.engine == "hf" else None
        self.engine = build_engine(self.config, options.device, shared)
        self.tokenizer = load_tokenizer(self.config.actor_rollout_ref.model)
        chat = ChatRenderer(self.tokenizer)
        distillation = self.config.actor_rollout_ref.actor.self_distillation
        self.algorithm = build_algorithm(self.config, RepromptBuilder(distillation, chat, 0))
        self.prompt_ids = [chat.prompt_ids([{"role": "user", "content": prompt}]) for prompt in case.PROMPTS]
        self.steps = 0
        self.clock = case.PhaseClock()
        self._time_parts()

    def _time_parts(self) -> None:
        wrap = self.clock.wrap
        wrap(self.actor.student, "scores", "student forward")
        wrap(type(self.actor.loss), "__call__", "heads, loss and its gradient")
        wrap(self.actor.optimizer, "step", "optimizer")
        if self.actor.teacher is not None:
            wrap(self.actor.teacher, "scores", "teacher forward")
            wrap(self.actor.teacher, "update", "teacher update")

    def rollout(self) -> list:
        """Groups of graded samples."""
        from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
        from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all

        self.steps += 1
        spec = {"max_tokens": self.options.tokens, "ignore_eos": True}
        requests = [
            GenerationRequest(f"{p}/{i}", ids, SamplingSpec(seed=1000 * self.steps + 10 * p + i, **spec))
            for p, ids in enumerate(self.prompt_ids)
            for i in range(self.options.responses)
        ]
        done = draw_all(self.engine, requests)
        groups = []
        for p, text in enumerate(case.PROMPTS):
            told = p < self.signal * len(case.PROMPTS)
            samples = []
            for i in range(self.options.responses):
                found = done[f"{p}/{i}"]
                # GRPO needs rewards that differ within a group; a demonstration would need a reward of 1.
                grade = Grade(GradeStatus.WRONG, 0.5 * (i % 2), feedback=case.FEEDBACK[p] * told)
                samples.append(
                    Sample(
                        f"p{p}", i, self.prompt_ids[p], found.response_ids, self.tokenizer.decode(found.response_ids),
                        found.finish_reason, self.engine.policy_version, found.log_probs, grade,
                    )
                )  # fmt: skip
            prompt = Prompt(f"p{p}", ({"role": "user", "content": text},), "text")
            groups.append(Group(prompt, samples))
        return groups

    def update(self, groups: list) -> dict[str, int]:
        """Trains on the groups; returns the tokens that each part of the step has read."""
        from sdpo.algorithms.rows import train_batch
        from sdpo.tokens.partition import side_tokens
        from sdpo.workers.actor import split_over_ranks

        with self.clock("batch"):
            routed = self.algorithm.route(groups, self.steps)
            batch = train_batch(groups, routed, self.config.actor_rollout_ref.actor)
            shares = split_over_ranks(batch.mini_batches, self.config.actor_rollout_ref.actor, 1)
        self.actor.update(shares[0])
        passes = [side_tokens(micro_batch.rows) for share in shares[0] for micro_batch in share.micro_batches]
        return {
            "prompt": sum(map(len, self.prompt_ids)),
            "response": sum(len(row.policy_ids) for mini in batch.mini_batches for row in mini.rows),
            "student": sum(student for student, _ in passes),
            "teacher": sum(teacher for _, teacher in passes),
        }

    def sync(self) -> None:
        if self.config.actor_rollout_ref.rollout.name == "hf":  # the student's own tensors
            self.engine.policy_version = self.actor.policy_version
            return
        from sdpo.weights import shared_memory

        self.base = getattr(self, "base", None) or shared_memory.new_base()
        asyncio.run(self.engine.load_weights(self.actor.publish(self.base), self.actor.policy_version))

    def step(self) -> dict:
        self.clock.take()
        start = time.perf_counter()
        with self.clock("rollout"):
            groups = self.rollout()
        with self.clock("update"):
            tokens = self.update(groups)
        with self.clock("sync"):
            self.sync()
        memory = {"peak_rss": case.resident("VmHWM")}
        if self.options.device == "cuda":
            import torch

            torch.cuda.synchronize()
            memory["peak_gpu"] = torch.cuda.max_memory_allocated()
        seconds, phases = time.perf_counter() - start, self.clock.take()
        inside = sum(value for name, value in phases.items() if name not in ("rollout", "update", "sync"))
        phases["backward and the rest"] = phases.pop("update") - inside
        return {"seconds": seconds, "phases": phases, "tokens": tokens, **memory}


class Worker:
    """A process that makes one step when asked."""

    def __init__(self, name: str, command: list[str], threads: int) -> None:
        own = {"OMP_WAIT_POLICY": "passive"} if name == "TRL" else ENVIRONMENT
        environment = own | os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.name, self.records = name, []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._next()

    def _next(self) -> dict:
        for line in self.process.stdout:
            record = case.heard(line)
            if record is not None:
                return record
        sys.exit(f"{self.name} ended early; its command: {' '.join(self.process.args)}")

    def step(self, keep: bool) -> None:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        record = self._next()
        print(f"{self.name:<8}{record['seconds']:7.2f} s{'' if keep else '  (warm-up, not counted)'}", flush=True)
        if keep:
            self.records.append(record)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def summary(self) -> dict:
        phases = {name for record in self.records for name in record["phases"]}
        median = {n: statistics.median(record["phases"].get(n, 0.0) for record in self.records) for n in phases}
        return {
            "seconds": statistics.median(record["seconds"] for record in self.records),
            "all_seconds": [record["seconds"] for record in self.records],
            "peak_rss_mib": max(record["peak_rss"] for record in self.records) / MIB,
            "peak_gpu_mib": max(record.get("peak_gpu", 0) for record in self.records) / MIB,
            "phases": dict(sorted(median.items(), key=lambda item: -item[1])),
            "tokens": self.records[-1].get("tokens"),
        }


def run(options: argparse.Namespace) -> dict:
    here = [sys.executable, __file__, "--serve", "--model", options.model, "--engine", options.engine]
    here += ["--checkpointing"] * options.checkpointing + ["--offload"] * options.offload
    here += ["--tokens-per-pass", str(options.tokens_per_pass), "--threads", str(options.threads)]
    here += ["--device", options.device, "--dtype", options.dtype]
    here += ["--tokens", str(options.tokens), "--responses", str(options.responses)]
    commands = {}
    for algorithm in options.algorithms:
        commands[algorithm] = [*here, "--algorithm", algorithm, "--signal", str(options.signal)]
    if options.trl:
        script = str(Path(__file__).with_name("trl_step.py"))
        commands["TRL"] = [options.trl, script, "--model", options.model, "--threads", str(options.threads)]
    if options.one_file:
        script = str(Path(__file__).with_name("one_file_step.py"))
        commands["one file"] = [sys.executable, script, "--model", options.model, "--threads", str(options.threads)]
    workers = [Worker(name, command, options.threads) for name, command in commands.items()]
    for repeat in range(options.repeats + 1):  # the first one warms up
        for worker in workers:
            worker.step(keep=repeat > 0)
    found = {}
    for worker in workers:
        worker.close()
        found[worker.name] = summary = worker.summary()
        print(f"{worker.name:<8}{summary['seconds']:7.2f} s  peak {summary['peak_rss_mib']:6.0f} MiB")
        for phase, seconds in summary["phases"].items():
            print(f"    {phase:<32}{seconds:7.2f} s")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=case.MODEL)
    parser.add_argument("--engine", default="hf", choices=["hf", "vllm"])
    parser.add_argument("--algorithms", nargs="+", default=["sdpo"], choices=["sdpo", "vanilla"])  # vanilla is GRPO
    parser.add_argument("--signal", type=float, default=1.0, help="share of the prompts whose samples have a signal")
    parser.add_argument("--tokens-per-pass", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=case.RESPONSE_TOKENS, help="of a response, here alone")
    parser.add_argument("--responses", type=int, default=case.RESPONSES, help="to each prompt, here alone")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", help="of the passes, here alone")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations in the backward pass")
    parser.add_argument("--offload", action="store_true", help="the teacher's weights and the moments in files")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one-file", action="store_true", help="and examples/sdpo_in_one_file.py")
    parser.add_argument("--trl", help="interpreter of an environment with trl 1.16 and the same torch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--algorithm", default="sdpo", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        import torch

        torch.set_num_threads(options.threads)
        with tempfile.TemporaryDirectory(dir=".") as folder:
            case.serve(Trainer(options, folder).step)
        return
    found = run(options)
    if options.json:
        machine = {"processor": case.processor(), "threads": options.threads, "load": os.getloadavg()[0]}
        shape = {"prompts": len(case.PROMPTS), "responses": options.responses, "tokens": options.tokens}
        result = {"model": options.model, "engine": options.engine, "signal": options.signal, **shape, **machine}
        options.json.write_text(json.dumps(result | {"runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
