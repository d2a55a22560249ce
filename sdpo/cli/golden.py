"""Compare the framework's own loss with recorded losses and gradients: `python -m sdpo.cli.golden FILE.json`.

The file holds one case or a list of cases: `inputs` with student_logits, teacher_logits [B, T, V], labels [B, T],
response_mask [B, T], optionally self_distillation_mask [B] and old_log_probs [B, T]; and `expected`, a list of settings
(mode full | topk | token, alpha, topk, add_tail, is_clip, loss_agg_mode, temperature) with the `loss` and
`grad_student_logits` [B, T, V] that belong to them. Everything is evaluated in float64 through `Sdpo.loss`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sdpo.cli.program import program
from sdpo.config.schema import Config, SelfDistillationConfig
from sdpo.errors import DataError, problem
from sdpo.kernels.lazy_logits import ResponseScores
from sdpo.losses.distillation import DistillationLoss
from sdpo.losses.token_batch import TokenBatch

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Comparison:
    """One setting of one case: absolute errors; infinite when a number is missing or not finite on one side only."""

    mode: str
    loss_error: float
    gradient_error: float

    @property
    def worst(self) -> float:
        return max(self.loss_error, self.gradient_error)


@program
def main(argv: list[str] | None = None) -> int:
    """Prints the largest errors per mode; returns 0 when all are within the tolerance, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m sdpo.cli.golden", description=__doc__.split("\n", 1)[0])
    parser.add_argument("file", type=Path, help="JSON file with inputs and expected values")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest error (default %(default)g)")
    arguments = parser.parse_args(argv)
    return report(compare_file(arguments.file), arguments.tolerance)


def report(results: list[Comparison], tolerance: float) -> int:
    print(f"{'mode':<8}{'settings':>10}{'largest loss error':>22}{'largest gradient error':>26}")
    for mode in sorted({result.mode for result in results}):
        own = [result for result in results if result.mode == mode]
        loss, gradient = max(r.loss_error for r in own), max(r.gradient_error for r in own)
        print(f"{mode:<8}{len(own):>10}{loss:>22.3e}{gradient:>26.3e}")
    outside = sum(result.worst > tolerance for result in results)
    verdict = f"{outside} of them outside" if outside else "all within"
    print(f"{len(results)} settings, {verdict} {tolerance:g}")
    return 1 if outside else 0


def compare_file(path: Path) -> list[Comparison]:
    """Raises DataError for a file that cannot be read or has another shape."""
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(problem(str(path), str(error), "a JSON file of golden cases")) from error
    results: list[Comparison] = []
    for number, case in enumerate(cases if isinstance(cases, list) else [cases], start=1):
        try:
            inputs = Inputs.read(case["inputs"])
            results += [_compare(inputs, expected) for expected in case["expected"]]
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            got = f"{type(error).__name__}: {error}"
            allowed = "inputs and expected as sdpo/cli/golden.py describes"
            raise DataError(problem(f"{path}, case {number}", got, allowed)) from error
    if not results:
        raise DataError(problem(str(path), "no settings", "at least one case with one expected setting"))
    return results


@dataclass(frozen=True)
class Inputs:
    """Tensors of one case; `chosen` [B, T] are the tokens in the loss."""

    student: torch.Tensor
    teacher: torch.Tensor
    labels: torch.Tensor
    chosen: torch.Tensor
    old_log_probs: torch.Tensor | None

    @classmethod
    def read(cls, inputs: dict[str, Any], dtype: torch.dtype = torch.float64) -> Inputs:
        """`dtype`: of the logits."""
        chosen = torch.tensor(inputs["response_mask"], dtype=torch.float64) > 0
        if inputs.get("self_distillation_mask") is not None:
            chosen = chosen & (torch.tensor(inputs["self_distillation_mask"], dtype=torch.float64) > 0)[:, None]
        old = inputs.get("old_log_probs")
        return cls(
            student=torch.tensor(inputs["student_logits"], dtype=dtype),
            teacher=torch.tensor(inputs["teacher_logits"], dtype=dtype),
            labels=torch.tensor(inputs["labels"], dtype=torch.int64),
            chosen=chosen,
            old_log_probs=None if old is None else torch.tensor(old, dtype=torch.float64),
        )

    def batch(self) -> TokenBatch:
        """The chosen tokens, flat; rows without any are gone, as they are in training."""
        lengths = self.chosen.sum(-1)
        lengths = lengths[lengths > 0]
        return TokenBatch(
            response_ids=self.labels[self.chosen],
            row=torch.repeat_interleave(torch.arange(lengths.numel()), lengths),
            row_lengths=lengths,
            weights=torch.ones(int(lengths.sum()), dtype=torch.float64),
            tokens=int(lengths.sum()),
            sequences=lengths.numel(),
            max_response_length=self.chosen.shape[1],
            old_log_probs=None if self.old_log_probs is None else self.old_log_probs[self.chosen],
        )


def _loss(expected: dict[str, Any]) -> DistillationLoss:
    mode = expected["mode"]
    if mode not in ("full", "topk", "token"):
        raise DataError(problem("mode", mode, "full, topk or token"))
    config = Config()
    actor = config.actor_rollout_ref.actor
    actor.loss_agg_mode, actor.entropy_coeff = expected["loss_agg_mode"], 0.0
    actor.self_distillation = SelfDistillationConfig(
        full_logit_distillation=mode != "token",
        alpha=float(expected["alpha"]),
        distillation_topk=expected["topk"] if mode == "topk" else None,
        distillation_add_tail=expected.get("add_tail", True),
        support=expected.get("support", "student"),
        is_clip=expected.get("is_clip"),
        divergence_clip=None,
    )
    config.actor_rollout_ref.rollout.temperature = float(expected.get("temperature", 1.0))
    config.algorithm.rollout_correction.rollout_is = None  # the recorded cases know no sampler
    return DistillationLoss(config)


def evaluate(
    inputs: Inputs, expected: dict[str, Any], head: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient by the student's logits. head [V, V]: the logits are hidden states and pass through it."""
    logits = inputs.student.clone().requires_grad_()
    width = logits.shape[-1]
    student = ResponseScores(logits[inputs.chosen], head, None, width)
    teacher = ResponseScores(inputs.teacher[inputs.chosen], head, None, width)
    loss = _loss(expected)(student, teacher, inputs.batch()).loss
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


def _compare(inputs: Inputs, expected: dict[str, Any]) -> Comparison:
    loss, gradient = evaluate(inputs, expected)
    recorded = torch.tensor(expected["grad_student_logits"], dtype=torch.float64)
    if recorded.shape != gradient.shape:
        raise DataError(problem("grad_student_logits", list(recorded.shape), str(list(gradient.shape))))
    wanted = torch.tensor(expected["loss"], dtype=torch.float64)
    if not inputs.chosen.any():  # others divide 0 by 0 here; nothing to distill is a loss of 0
        recorded, wanted = recorded.nan_to_num(nan=0.0), wanted.nan_to_num(nan=0.0)
    errors = float((loss - wanted).abs()), float((gradient - recorded).abs().max())
    return Comparison(expected["mode"], *(math.inf if math.isnan(error) else error for error in errors))


if __name__ == "__main__":
    sys.exit(main())
