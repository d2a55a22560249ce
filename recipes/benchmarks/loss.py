"""Time and memory of the distillation loss, against the straightforward torch path in the same run.

    python recipes/benchmarks/loss.py [--repeats 5] [--threads 2] [--device cpu] [--json FILE] [--figure FILE]

Both paths start from the hidden states of student and teacher at the response positions, apply both heads and end with
the gradients of the student's hidden states and head. *Straightforward* keeps log-probabilities of all tokens and
leaves the gradient to autograd; *here* is `sdpo.algorithms.distillation`.

Times are medians over repeats in which the paths take turns in one process. Peak extra memory is measured in a process
per case: the high-water mark of resident memory (on a GPU: of allocated memory) during one forward and backward pass,
above what was there before it with all inputs made and the libraries warm. Both paths leave the gradients of hidden
states and head behind; the last column is without them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch.nn.functional import linear, log_softmax

from sdpo.algorithms.distillation import Distillation, distillation_loss
from sdpo.algorithms.divergence import Divergence
from sdpo.algorithms.policy import policy_terms
from sdpo.algorithms.scores import ResponseScores

ALPHA, TOPK = 0.5, 100
MODES = ("full", "topk", "token", "policy")  # whole vocabulary, top-k + tail, sampled token, GRPO's log-probs
MAIN = (1024, 576, 49152)  # tokens, hidden size and vocabulary of SmolLM2-135M
LARGE = (4096, 1024, 151936)  # hidden size and vocabulary of Qwen3-0.6B
TOKENS, VOCABULARIES = (256, 512, 1024, 2048), (8192, 32768, 131072)
MIB = 2**20


class Inputs:
    """Hidden states and heads whose distributions look like a language model's: a few likely tokens and a long tail."""

    def __init__(self, tokens: int, hidden: int, vocabulary: int, device: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        hidden_states, head = random(tokens, hidden), random(vocabulary, hidden).mul_(3.0 / math.sqrt(hidden))
        self.teacher_hidden = (hidden_states + 0.5 * random(tokens, hidden)).to(device, dtype)
        self.teacher_head = head.to(device, dtype, copy=True)
        self.hidden = hidden_states.to(device, dtype).requires_grad_()
        self.head = head.to(device, dtype).requires_grad_()
        self.ids = torch.randint(0, vocabulary, (tokens,), generator=generator).to(device)

    def clear(self) -> None:
        self.hidden.grad = self.head.grad = None


def straightforward(inputs: Inputs, mode: str) -> torch.Tensor:
    """The definition in the obvious torch operations."""
    log_p = log_softmax(linear(inputs.hidden, inputs.head).float(), -1)
    own = log_p.gather(-1, inputs.ids[:, None])[:, 0]
    if mode == "policy":
        return -own.mean()
    with torch.no_grad():
        log_q = log_softmax(linear(inputs.teacher_hidden, inputs.teacher_head).float(), -1)
    if mode == "token":
        return ((own - log_q.gather(-1, inputs.ids[:, None])[:, 0]).detach() * own).mean()
    if mode == "topk":
        ids = log_p.topk(TOPK, -1).indices
        log_p, log_q = (with_tail(side.gather(-1, ids)) for side in (log_p, log_q))
    log_m = torch.logaddexp(log_p + math.log(1 - ALPHA), log_q + math.log(ALPHA))
    from_teacher, from_student = ((side.exp() * (side - log_m)).sum(-1) for side in (log_q, log_p))
    return (ALPHA * from_teacher + (1 - ALPHA) * from_student).mean()


def with_tail(log_probs: torch.Tensor) -> torch.Tensor:
    inside = log_probs.logsumexp(-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], -1)


def here(inputs: Inputs, mode: str) -> torch.Tensor:
    """The same from the package."""
    vocabulary = inputs.head.shape[0]
    student = ResponseScores(inputs.hidden, inputs.head, None, vocabulary)
    if mode == "policy":
        return -policy_terms(student, inputs.ids, 1.0)[0].mean()
    teacher = ResponseScores(inputs.teacher_hidden, inputs.teacher_head, None, vocabulary)
    spec = Divergence(mode, 1.0 if mode == "token" else ALPHA, TOPK)
    tokens = inputs.ids.shape[0]
    weights = inputs.hidden.new_full((tokens,), 1.0 / tokens, dtype=torch.float32)
    return distillation_loss(student, teacher, inputs.ids, Distillation(spec, lambda part, _: weights[part]))[0]


PATHS: dict[str, Callable[[Inputs, str], torch.Tensor]] = {"straightforward": straightforward, "here": here}


def step(path: str, inputs: Inputs, mode: str) -> float:
    """Seconds of one forward and backward pass."""
    inputs.clear()
    synchronize(inputs)
    start = time.perf_counter()
    PATHS[path](inputs, mode).backward()
    synchronize(inputs)
    return time.perf_counter() - start


def synchronize(inputs: Inputs) -> None:
    if inputs.hidden.is_cuda:
        torch.cuda.synchronize()


def times(inputs: Inputs, mode: str, paths: list[str], repeats: int) -> dict[str, float]:
    """Median seconds by path."""
    for path in paths:
        step(path, inputs, mode)
    rounds = [{path: step(path, inputs, mode) for path in paths} for _ in range(repeats)]
    return {path: statistics.median(found[path] for found in rounds) for path in paths}


def resident(field: str) -> int:
    """Bytes of VmRSS or VmHWM."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def peak_extra(path: str, mode: str, inputs: Inputs) -> int:
    """Bytes above the inputs in one pass. A small pass first loads the libraries and starts the threads."""
    step(path, Inputs(128, 64, 4096, inputs.hidden.device.type, inputs.hidden.dtype), mode)
    if inputs.hidden.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(path, inputs, mode)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
    before = resident("VmRSS")
    step(path, inputs, mode)
    return resident("VmHWM") - before


def memory(path: str, mode: str, shape: tuple[int, int, int], options: argparse.Namespace) -> int:
    """`peak_extra` in a process of its own."""
    case = json.dumps({"path": path, "mode": mode, "shape": shape})
    command = [sys.executable, __file__, "--memory-of", case, "--device", options.device, "--dtype", options.dtype]
    found = subprocess.run(command + ["--threads", str(options.threads)], capture_output=True, text=True, check=True)
    return int(found.stdout)


def peaks(path: str, mode: str, shape: tuple[int, int, int], options: argparse.Namespace) -> dict[str, float]:
    """MiB with and without the gradients that the pass leaves behind: of the hidden states and the head."""
    tokens, hidden, vocabulary = shape
    gradients = (tokens + vocabulary) * hidden * getattr(torch, options.dtype).itemsize
    peak = memory(path, mode, shape, options)
    return {"peak_extra_mib": peak / MIB, "beyond_gradients_mib": (peak - gradients) / MIB}


def line(row: dict) -> str:
    seconds = "-" if row["seconds"] is None else f"{row['seconds']:.3f} s"
    case = "{mode:<8}{tokens:>7}{vocabulary:>9}  {path:<16}".format(**row)
    return f"{case}{seconds:>10}{row['peak_extra_mib']:>9.0f} MiB{row['beyond_gradients_mib']:>10.0f} MiB"


def measure(mode: str, shape: tuple[int, int, int], paths: list[str], options: argparse.Namespace) -> list[dict]:
    seconds = times(Inputs(*shape, options.device, getattr(torch, options.dtype)), mode, paths, options.repeats)
    rows = []
    for path in paths:
        size = dict(zip(("tokens", "hidden", "vocabulary"), shape, strict=True))
        row = {"mode": mode, **size, "path": path, "seconds": seconds[path]}
        rows.append({**row, **peaks(path, mode, shape, options)})
        print(
            "{mode:<8}{tokens:>7}{vocabulary:>9}  {path:<16}{seconds:>8.3f} s{peak_extra_mib:>9.0f} MiB".format(
                **rows[-1]
            )
        )
    if len(rows) == 2:
        shares = [rows[1][key] / rows[0][key] for key in ("seconds", "peak_extra_mib")]
        print(f"{'':26}{'share':<16}{shares[0]:>8.2f}  {shares[1]:>9.3f}")
    sys.stdout.flush()
    return rows


def run(options: argparse.Namespace) -> dict:
    both, only = list(PATHS), ["here"]
    print(f"{'mode':<8}{'tokens':>7}{'vocab':>9}  {'path':<16}{'time':>10}{'peak extra':>13}{'w/o gradients':>14}")
    rows = [row for mode in MODES for row in measure(mode, MAIN, both, options)]
    if not options.main_only:
        _, hidden, vocabulary = MAIN
        for tokens in TOKENS:
            rows += measure("full", (tokens, hidden, vocabulary), only, options)
        for size in VOCABULARIES:
            rows += measure("full", (MAIN[0], hidden, size), only, options)
        size = dict(zip(("tokens", "hidden", "vocabulary"), LARGE, strict=True))
        peak = peaks("here", "full", LARGE, options)
        rows.append({"mode": "full", **size, "path": "here", "seconds": None, **peak})
        print(line(rows[-1]) + f" (hidden size {LARGE[1]}, one pass)")
    machine = {"processor": platform.processor(), "threads": options.threads, "load": os.getloadavg()[0]}
    return {"torch": torch.__version__, "device": options.device, "dtype": options.dtype, **machine, "rows": rows}


def draw(result: dict, file: Path) -> None:
    """Cost over tokens and over vocabulary, with a straight line through the origin and the largest point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [r for r in result["rows"] if r["mode"] == "full" and r["path"] == "here" and r["seconds"]]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, key, fixed, name in (
        (axes[0], "tokens", ("vocabulary", MAIN[2]), f"response tokens, vocabulary {MAIN[2]:,}"),
        (axes[1], "vocabulary", ("tokens", MAIN[0]), f"vocabulary, {MAIN[0]:,} tokens"),
    ):
        points = sorted({r[key]: r for r in rows if r[fixed[0]] == fixed[1]}.items())
        x, last = [p for p, _ in points], points[-1][1]
        axis.plot(x, [r["seconds"] for _, r in points], "o-", color="#1f6f8b", label="time")
        axis.plot([0, x[-1]], [0, last["seconds"]], ":", color="grey", label="proportional")
        axis.set(xlabel=name, ylabel="seconds", xlim=0)
        right = axis.twinx()
        right.plot(x, [r["peak_extra_mib"] for _, r in points], "s--", color="#c8553d", label="peak extra memory")
        right.set(ylabel="MiB")
        axis.set_xticks(x, [f"{p:,}" for p in x], rotation=30)
        for one in (axis, right):
            one.set_ylim(0, 1.35 * one.dataLim.y1)  # room for the legend
        handles = [line for one in (axis, right) for line in one.get_legend_handles_labels()[0]]
        axis.legend(handles=handles, loc="upper left", frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of hidden states and heads")
    parser.add_argument("--main-only", action="store_true", help="only the comparison, not how cost grows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        case = json.loads(options.memory_of)
        inputs = Inputs(*case["shape"], options.device, getattr(torch, options.dtype))
        print(peak_extra(case["path"], case["mode"], inputs))
        return
    result = run(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.figure:
        draw(result, options.figure)


if __name__ == "__main__":
    main()
