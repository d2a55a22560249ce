"""Answers to held-out problems, graded as in a run: its prompts, sampling, engine, graders and sandbox."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sdpo.config.schema import Config
from sdpo.evaluation.statistics import Problem
from sdpo.evaluation.subjects import Subject
from sdpo.models.load import load_chat
from sdpo.records import GradeStatus, Group
from sdpo.training.evaluate import validation_plan
from sdpo.training.jobs import load_jobs
from sdpo.training.metrics import success_counts
from sdpo.training.run import check_context, check_device, resolve_device
from sdpo.workers.grader import ThreadGraderPool
from sdpo.workers.rollout import RolloutWorker

AT_ONCE = 256  # problems that an engine is given together


@dataclass(frozen=True)
class Measured:
    name: str
    problems: list[Problem]


def measure(
    config: Config,
    subject: Subject,
    say: Callable[[str], None],
    keep: Callable[[Group], None],
    first: int | None = None,
) -> Measured:
    """`val_kwargs.n` answers of one model to every problem of `data.val_files`, or the first so many. `keep` is given
    each graded group.

    Two models are drawn with the same seeds, and so is a run's own validation. Raises SdpoError as a run would."""
    own = copy.deepcopy(config)
    own.actor_rollout_ref.model = subject.model
    check_context(own)
    device = resolve_device(own.trainer.device)
    check_device(own, device)
    jobs, plan = load_jobs(own, load_chat(own), "val")[:first], validation_plan(own)
    say(f"{subject.name}: {len(jobs)} problems, {plan.n} answers each")
    worker = RolloutWorker(own, device, ThreadGraderPool(own))
    problems = []
    try:
        for start in range(0, len(jobs), AT_ONCE):
            for group in worker.generate(jobs[start : start + AT_ONCE], plan):
                keep(group)
                problems.append(problem_of(group, own.trainer.val_success_threshold))
            if len(jobs) > AT_ONCE:
                say(f"{subject.name}: {len(problems)} of {len(jobs)} problems")
    finally:
        worker.close()
    return Measured(subject.name, problems)


def problem_of(group: Group, threshold: float, tokens_known: bool = True) -> Problem:
    graded, correct = success_counts(group, threshold)
    samples = group.samples
    return Problem(
        uid=group.prompt.uid,
        source=group.prompt.data_source,
        graded=graded,
        correct=correct,
        reward=sum(sample.reward for sample in samples if sample.reward is not None),
        answers=len(samples),
        truncated=sum(sample.truncated for sample in samples),
        failed=sum(s.grade is not None and s.grade.status is GradeStatus.INFRA_ERROR for s in samples),
        tokens=sum(len(sample.response_ids) for sample in samples) if tokens_known else None,
    )


def by_source(measured: Sequence[Measured]) -> list[str]:
    """All data sources, in the order in which they come."""
    return list(dict.fromkeys(problem.source for one in measured for problem in one.problems))
