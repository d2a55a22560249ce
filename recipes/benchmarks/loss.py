"""Time and memory of the distillation loss, against the straightforward torch path in the same run.

    python recipes/benchmarks/loss.py [compare] [growth] [large] [--modes full topk token policy] [--json FILE]
        [--figure FILE] [--repeats 5] [--threads 2] [--device cpu]

*compare*: two paths at one size; *growth*: over tokens and vocabulary; *large*: one pass at 4,096 x 151,936. Without a
part: all of them. `--json` adds to what the file holds, so that parts and modes may run one after another, and
`--figure` draws the whole file.

Both paths start from the hidden states of student and teacher at the response positions, apply both heads and end with
the gradients of the student's hidden states and head. *Straightforward* keeps log-probabilities of all tokens and
leaves the gradient to autograd; *here* is `sdpo.kernels.distillation`.

Times are medians over repeats in which the paths take turns in one process. Peak extra memory is measured in a process
per case: the high-water mark of resident memory (on a GPU: of allocated memory) during one forward and backward pass,
above what was there before it with all inputs made and the libraries warm. Time and memory are those of a step's second
micro-batch: the gradient of the head is there from the first, to be added to. The last column is the memory of the
first one, which makes it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sdpo.config.environment import ENVIRONMENT

os.environ.update(ENVIRONMENT | dict(os.environ))

import torch
from step_case import processor, resident, waiting
from torch.nn.functional import cross_entropy, kl_div, linear, log_softmax

from sdpo.kernels.distillation import Distillation, distillation_loss
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.kernels.policy import policy_terms

ALPHA, TOPK = 0.5, 100
MODES = ("full", "topk", "token", "policy")  # whole vocabulary, top-k + tail, sampled token, GRPO's log-probs
MAIN = (1024, 576, 49152)  # tokens, hidden size and vocabulary of SmolLM2-135M
LARGE = (4096, 1024, 151936)  # hidden size and vocabulary of Qwen3-0.6B
TOKENS, VOCABULARIES = (256, 512, 1024, 2048), (8192, 32768, 131072)
MIB = 2**20
PARTS = ("compare", "growth", "large")
MEASURED = ("seconds", "peak_extra_mib", "first_extra_mib")


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

    def clear(self, first: bool) -> None:
        """Hidden states are new in every micro-batch, the head is not."""
        self.hidden.grad = None
        if first:
            self.head.grad = None
        elif self.head.grad is None:
            self.head.grad = torch.zeros_like(self.head)


def straightforward(inputs: Inputs, mode: str) -> torch.Tensor:
    """The definition in torch's own functions, as trainers write it: logits first, then log-probabilities, then the
    divergence by `kl_div` against a mixture made by `logsumexp`."""
    student_logits = linear(inputs.hidden, inputs.head).float()
    if mode == "policy":
        return cross_entropy(student_logits, inputs.ids)
    with torch.no_grad():
        teacher_logits = linear(inputs.teacher_hidden, inputs.teacher_head).float()
    if mode == "token":
        own, other = (-cross_entropy(side, inputs.ids, reduction="none") for side in (student_logits, teacher_logits))
        return ((own - other).detach() * own).mean()
    if mode == "full":
        log_p, log_q = log_softmax(student_logits, -1), log_softmax(teacher_logits, -1)
    else:
        ids = student_logits.topk(TOPK, -1).indices
        log_p, log_q = (with_tail(side, ids) for side in (student_logits, teacher_logits))
    log_m = torch.stack([log_p + math.log(1 - ALPHA), log_q + math.log(ALPHA)]).logsumexp(0)
    from_student, from_teacher = (kl_div(log_m, side, reduction="none", log_target=True) for side in (log_p, log_q))
    return from_student.lerp(from_teacher, ALPHA).sum(-1).mean()


def with_tail(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the chosen entries and of all others together."""
    log_probs = log_softmax(logits, -1).gather(-1, ids)
    inside = log_probs.logsumexp(-1, keepdim=True).clamp(max=-1e-7)
    return torch.cat([log_probs, torch.log(-torch.expm1(inside))], -1)


def here(inputs: Inputs, mode: str) -> torch.Tensor:
    """The same from the package, with the gradient of the head in place (`models.forward.PolicyModule`)."""
    vocabulary = inputs.head.shape[0]
    if inputs.head.grad is None and inputs.head.dtype == torch.float32:
        inputs.head.grad = torch.zeros_like(inputs.head)
    student = ResponseScores(inputs.hidden, inputs.head, None, vocabulary, weight_gradient=inputs.head.grad)
    if mode == "policy":
        return -policy_terms(student, inputs.ids, 1.0)[0].mean()
    teacher = ResponseScores(inputs.teacher_hidden, inputs.teacher_head, None, vocabulary)
    spec = Divergence(mode, 1.0 if mode == "token" else ALPHA, TOPK)
    tokens = inputs.ids.shape[0]
    weights = inputs.hidden.new_full((tokens,), 1.0 / tokens, dtype=torch.float32)
    distillation = Distillation(spec, lambda part, _: weights[part], times_one=True)
    return distillation_loss(student, teacher, inputs.ids, distillation)[0]


PATHS: dict[str, Callable[[Inputs, str], torch.Tensor]] = {"straightforward": straightforward, "here": here}


def step(path: str, inputs: Inputs, mode: str, first: bool = False) -> float:
    """Seconds of one forward and backward pass."""
    inputs.clear(first)
    synchronize(inputs)
    start = time.perf_counter()
    PATHS[path](inputs, mode).backward()
    synchronize(inputs)
    return time.perf_counter() - start


def synchronize(inputs: Inputs) -> None:
    if inputs.hidden.is_cuda:
        torch.cuda.synchronize()


def times(inputs: Inputs, mode: str, paths: list[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of every repeat by path."""
    for path in paths:
        step(path, inputs, mode)
    rounds = [{path: step(path, inputs, mode) for path in paths} for _ in range(repeats)]
    return {path: [found[path] for found in rounds] for path in paths}


def peak_extra(path: str, mode: str, first: bool, inputs: Inputs) -> int:
    """Bytes above the inputs in one pass. A small pass first loads the libraries and starts the threads."""
    step(path, Inputs(128, 64, 4096, inputs.hidden.device.type, inputs.hidden.dtype), mode)
    inputs.clear(first)
    if inputs.hidden.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(path, inputs, mode, first)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
    before = resident("VmRSS")
    step(path, inputs, mode, first)
    return resident("VmHWM") - before


def memory(path: str, mode: str, first: bool, shape: tuple[int, int, int], options: argparse.Namespace) -> float:
    """`peak_extra` in a process of its own, in MiB."""
    memory_case = json.dumps({"path": path, "mode": mode, "first": first, "shape": shape})
    command = [
        sys.executable,
        __file__,
        "--memory-of",
        memory_case,
        "--device",
        options.device,
        "--dtype",
        options.dtype,
    ]
    found = subprocess.run(command + ["--threads", str(options.threads)], capture_output=True, text=True, check=True)
    return int(found.stdout) / MIB


def peaks(path: str, mode: str, shape: tuple[int, int, int], options: argparse.Namespace) -> dict[str, float]:
    later, first = (memory(path, mode, first, shape, options) for first in (False, True))
    return {"peak_extra_mib": later, "first_extra_mib": first}


def measure(
    part: str, mode: str, shape: tuple[int, int, int], paths: list[str], options: argparse.Namespace
) -> list[dict]:
    seconds = times(Inputs(*shape, options.device, getattr(torch, options.dtype)), mode, paths, options.repeats)
    rows = []
    for path in paths:
        median = {"seconds": statistics.median(seconds[path]), "repeats": [round(s, 4) for s in seconds[path]]}
        rows.append({**case(part, mode, shape, path), **median, **peaks(path, mode, shape, options)})
        report(rows[-1])
    if len(rows) == 2:
        shares = [rows[1][key] / rows[0][key] for key in MEASURED]
        print(f"{'':26}{'share':<16}{shares[0]:>10.2f}{shares[1]:>13.3f}{shares[2]:>14.3f}", flush=True)
    return rows


def case(part: str, mode: str, shape: tuple[int, int, int], path: str) -> dict:
    return {
        "part": part,
        "mode": mode,
        **dict(zip(("tokens", "hidden", "vocabulary"), shape, strict=True)),
        "path": path,
    }


def report(row: dict) -> None:
    seconds = "one pass" if row["seconds"] is None else f"{row['seconds']:.3f} s"
    name = "{mode:<8}{tokens:>7}{vocabulary:>9}  {path:<16}".format(**row)
    print(f"{name}{seconds:>10}{row['peak_extra_mib']:>9.0f} MiB{row['first_extra_mib']:>10.0f} MiB", flush=True)


def run(options: argparse.Namespace) -> list[dict]:
    """Rows of the parts that are asked for."""
    print(f"{'mode':<8}{'tokens':>7}{'vocab':>9}  {'path':<16}{'time':>10}{'peak extra':>13}{'the first':>14}")
    _, hidden, vocabulary = MAIN
    rows = []
    if "compare" in options.parts:
        shape = tuple(options.shape)
        rows += [row for mode in options.modes for row in measure("compare", mode, shape, list(PATHS), options)]
    if "growth" in options.parts:
        shapes = [(tokens, hidden, vocabulary) for tokens in TOKENS] + [(MAIN[0], hidden, v) for v in VOCABULARIES]
        for mode in options.modes:
            rows += [row for shape in shapes for row in measure("growth", mode, shape, ["here"], options)]
    if "large" in options.parts:
        for mode in options.modes:
            rows.append({**case("large", mode, LARGE, "here"), "seconds": None, **peaks("here", mode, LARGE, options)})
            report(rows[-1])
    return rows


def merged(file: Path | None, rows: list[dict], options: argparse.Namespace) -> dict:
    """What the file holds with these rows in place of its own about the same cases."""

    def key(row: dict) -> tuple:
        return tuple(row[name] for name in ("part", "mode", "tokens", "hidden", "vocabulary", "path"))

    held = json.loads(file.read_text())["rows"] if file is not None and file.exists() else []
    both = {key(row): row for row in [*held, *({**row, "load": os.getloadavg()[0]} for row in rows)]}
    machine = {"processor": processor(), "cores": os.cpu_count(), "threads": options.threads}
    settings = {"device": options.device, "dtype": options.dtype, **waiting()}
    return {"torch": torch.__version__, **settings, **machine, "rows": list(both.values())}


def draw(result: dict, file: Path) -> None:
    """Time and memory over tokens and over vocabulary; dotted: times in proportion to the largest; dashed: memory of a
    step's first micro-batch, which makes the gradient of the head."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(9, 5.6), layout="constrained", sharex="col")
    for column, (key, fixed, name) in enumerate(
        (
            ("tokens", ("vocabulary", MAIN[2]), f"response tokens, vocabulary {MAIN[2]:,}"),
            ("vocabulary", ("tokens", MAIN[0]), f"vocabulary, {MAIN[0]:,} tokens"),
        )
    ):
        for mode, label, color in (("full", "whole vocabulary", "#1f6f8b"), ("topk", "top-100 + tail", "#c8553d")):
            own = [r for r in result["rows"] if r["part"] == "growth" and r["mode"] == mode]
            if not own:
                continue
            own = sorted((r for r in own if r[fixed[0]] == fixed[1]), key=lambda r: r[key])
            x = [r[key] for r in own]
            seconds, later, first = ([r[name] for r in own] for name in MEASURED)
            axes[0, column].plot(x, seconds, "o-", color=color, label=label)
            axes[0, column].plot([0, x[-1]], [0, seconds[-1]], ":", color=color, linewidth=1)
            axes[1, column].plot(x, later, "o-", color=color)
            axes[1, column].plot(x, first, "o--", color=color, linewidth=1, markersize=3)
            axes[1, column].set_xticks(x, [f"{p:,}" for p in x], rotation=30)
        axes[1, column].set(xlabel=name, xlim=0)
    axes[0, 0].set(ylabel="seconds")
    axes[1, 0].set(ylabel="peak extra memory, MiB")
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="default: all")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--shape", type=int, nargs=3, default=MAIN, metavar=("TOKENS", "HIDDEN", "VOCABULARY"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", help="of hidden states and heads")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        memory_case = json.loads(options.memory_of)
        inputs = Inputs(*memory_case["shape"], options.device, getattr(torch, options.dtype))
        print(peak_extra(memory_case["path"], memory_case["mode"], memory_case["first"], inputs))
        return
    options.parts = options.parts or PARTS
    result = merged(options.json, run(options), options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    if options.figure:
        draw(result, options.figure)


if __name__ == "__main__":
    main()
