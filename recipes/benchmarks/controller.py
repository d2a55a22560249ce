"""What the controller does around a rollout and an update, without a model: where its time goes and how it grows.

python recipes/benchmarks/controller.py --model models/smollm2-135m --json docs/figures/controller.json \\
    --figure docs/figures/controller.png

The rollout is a script: groups of responses cut from the sources of Python's standard library, every other one right,
each wrong one with feedback of its own. Tokenizer, reprompts, rows, plan and logs are those of a run. What goes from
process to process is pickled, as Ray does.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sdpo.config.environment import ENVIRONMENT

os.environ.update(ENVIRONMENT | dict(os.environ))

import step_case as case

from sdpo.algorithms.registry import build_algorithm
from sdpo.algorithms.rows import train_batch
from sdpo.config.schema import Config
from sdpo.models.load import load_chat
from sdpo.records import Grade, GradeStatus, Group, Prompt, Sample
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer
from sdpo.tracking.run_log import RunLog
from sdpo.training.metrics import train_metrics
from sdpo.workers.actor import split_over_ranks

MIB = 2**20
REPROMPTS, LAST = "reprompts, as groups end", "reprompts of the last group"
BEYOND = (  # the rollout: what all devices wait for
    LAST,
    "samples to the controller",
    "rows",
    "log of samples",
    "plan of forwards",
    "rows to the actors",
    "log of tokens, metrics",
)


class Clock:
    """Seconds by phase: on the wall, and of the processor's cores together."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    def __call__(self, phase: str, work: Callable[[], Any]) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        found = work()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
        self.cpu[phase] = self.cpu.get(phase, 0.0) + time.process_time() - cpu
        return found


class Script:
    """Groups as a rollout leaves them."""

    def __init__(self, chat: ChatRenderer, samples: int, tokens: int) -> None:
        self.chat, self.tokens, self.random = chat, tokens, random.Random(0)
        self.ids: list[int] = []
        for file in sorted(Path(os.__file__).parent.glob("*.py")):
            if len(self.ids) < 20 * tokens + samples * 100:
                self.ids += chat.tokenizer.encode(file.read_text(errors="ignore"), add_special_tokens=False)

    def _cut(self, tokens: int) -> list[int]:
        start = self.random.randrange(len(self.ids) - tokens)
        return self.ids[start : start + tokens]

    def group(self, uid: str, responses: int) -> Group:
        problem = f"Problem {uid}: {self.chat.decode(self._cut(80))}"
        prompt = Prompt(uid, ({"role": "user", "content": problem},), "text")
        prompt_ids = self.chat.student_ids(prompt)
        return Group(prompt, [self._sample(uid, index, prompt_ids) for index in range(responses)])

    def _sample(self, uid: str, index: int, prompt_ids: list[int]) -> Sample:
        ids = [*self._cut(self.tokens - 1), self.chat.tokenizer.eos_token_id]
        if index % 2:
            grade = Grade(GradeStatus.OK, 1.0)
        else:
            grade = Grade(GradeStatus.WRONG, 0.0, feedback=f"Wrong answer\n{self.chat.decode(self._cut(60))}")
        log_probs = [-self.random.random() for _ in ids]
        return Sample(uid, index, prompt_ids, ids, self.chat.decode(ids), "stop", 0, log_probs, grade)


def token_lines(groups: list[Group]) -> list[dict[str, Any]]:
    """As many and as long as those of an update."""
    numbers = [-0.1234] * 2048
    return [{"uid": s.prompt_uid, "index": s.index, "tokens": ["token"] * 2048, "student": numbers, "teacher": numbers}
            for s in groups[0].samples]  # fmt: skip


def measure(config: Config, chat: ChatRenderer, samples: int, tokens: int, folder: Path) -> dict[str, Any]:
    """One step of the controller."""
    clock, responses = Clock(), config.actor_rollout_ref.rollout.n
    script = Script(chat, samples, tokens)
    groups = [script.group(f"p{number}", responses) for number in range(samples // responses)]
    builder = RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat, 0)
    builder.build(script.group("warm-up", responses))
    each = []
    for group in groups:
        start = time.perf_counter()
        group.reprompts = clock(REPROMPTS, lambda group=group: builder.build(group, 1))
        each.append(time.perf_counter() - start)
    clock.seconds[LAST] = clock.cpu[LAST] = statistics.median(each)

    sent, groups = clock("samples to the controller", lambda: carried(groups))
    algorithm, actor = build_algorithm(config, builder), config.actor_rollout_ref.actor
    batch = clock("rows", lambda: train_batch(groups, algorithm.route(groups, 1), actor))
    with RunLog(folder, config) as log:
        clock("log of samples", lambda: log.samples(1, groups, batch.reprompts))
        shares = clock("plan of forwards", lambda: split_over_ranks(batch.mini_batches, actor, 1))
        rows, _ = clock("rows to the actors", lambda: carried(shares))
        clock("log of tokens, metrics", lambda: log.tokens(1, token_lines(groups)))
        clock("log of tokens, metrics", lambda: train_metrics(groups, 1.0))
    trained = sum(len(mini.rows) for mini in batch.mini_batches)
    return {
        "samples": samples,
        "tokens": tokens,
        "trained": trained,
        "seconds": clock.seconds,
        "cpu": clock.cpu,
        "beyond_rollout": sum(clock.seconds[name] for name in BEYOND),
        "beyond_rollout_cpu": sum(clock.cpu[name] for name in BEYOND),
        "samples_mib": sent / MIB,
        "rows_mib": rows / MIB,
        "load": os.getloadavg()[0],
    }


def carried(records: Any) -> tuple[int, Any]:
    """To another process: bytes, and what arrives there."""
    sent = pickle.dumps(records, 5)
    return len(sent), pickle.loads(sent)


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs the one that others on the machine disturbed least."""
    return min(runs, key=lambda run: run["beyond_rollout"])


def show(row: dict[str, Any]) -> None:
    print(f"{row['samples']} samples of {row['tokens']} tokens (wall, cores)")
    for name in (REPROMPTS, *BEYOND):
        print(f"  {name:<30}{row['seconds'][name]:8.3f} s{row['cpu'][name]:8.3f} s")
    print(f"  {'beyond the rollout':<30}{row['beyond_rollout']:8.3f} s{row['beyond_rollout_cpu']:8.3f} s")
    print(f"  samples {row['samples_mib']:.1f} MiB, rows {row['rows_mib']:.1f} MiB, load {row['load']:.1f}", flush=True)


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Dotted: in proportion to the largest."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    x = [row["samples"] for row in rows]
    lines = (
        (left, "beyond the rollout", [row["beyond_rollout_cpu"] for row in rows], "#c8553d"),
        (left, "reprompts, while others are drawn", [row["cpu"][REPROMPTS] for row in rows], "#1f6f8b"),
        (right, "rows", [row["rows_mib"] for row in rows], "#c8553d"),
        (right, "samples with their reprompts", [row["samples_mib"] for row in rows], "#1f6f8b"),
    )
    for axis, label, y, color in lines:
        axis.loglog(x, y, "o-", color=color, label=label)
        axis.loglog([x[0], x[-1]], [y[-1] * x[0] / x[-1], y[-1]], ":", color=color, linewidth=1)
    left.set(ylabel="seconds of processor time")
    right.set(ylabel="MiB, pickled")
    for axis in (left, right):
        axis.set_xticks(x, [f"{n:,}" for n in x], rotation=30)
        axis.set_xticks([], minor=True)
        axis.set(xlabel=f"samples of {rows[0]['tokens']:,} tokens")
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default=case.MODEL, help="folder with the tokenizer, or builtin://tiny/hard")
    parser.add_argument("--samples", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--tokens", type=int, default=4096, help="of a response")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    config = Config()
    config.actor_rollout_ref.model.path = options.model
    config.trainer.logger = []
    chat = load_chat(config)
    rows = []
    for samples in options.samples:
        runs = []
        for _ in range(options.repeats):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure(config, chat, samples, options.tokens, Path(folder)))
        rows.append(best(runs))
        show(rows[-1])
    if options.json:
        machine = {"processor": case.processor(), "cores": len(os.sched_getaffinity(0)), "model": options.model}
        options.json.write_text(json.dumps(machine | {"rows": rows}, indent=1) + "\n")
    if options.figure:
        draw(rows, options.figure)


if __name__ == "__main__":
    main()
