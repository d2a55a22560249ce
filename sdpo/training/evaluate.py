"""Validation: n responses to each held-out prompt, avg@n and pass@k."""

from __future__ import annotations

from collections.abc import Sequence

from sdpo.config.schema import Config
from sdpo.records import Group
from sdpo.training.metrics import validation_metrics
from sdpo.workers.group import Workers
from sdpo.workers.rollout import RenderedPrompt, SamplingPlan

VALIDATION_SEED = (
    7_919  # apart from the training seeds, and the same at every validation: curves compare like with like
)


def validation_plan(config: Config) -> SamplingPlan:
    settings = config.actor_rollout_ref.rollout.val_kwargs
    return SamplingPlan(
        n=settings.n,
        temperature=settings.temperature if settings.do_sample else 0.0,
        top_p=settings.top_p,
        top_k=settings.top_k,
        max_tokens=config.data.max_response_length,
        seed=config.data.seed + VALIDATION_SEED,
        step=0,
        log_probs=False,
    )


def validate(config: Config, workers: Workers, jobs: Sequence[RenderedPrompt]) -> tuple[list[Group], dict[str, float]]:
    """Groups and `val/*` metrics of the student's current weights (already synced to the engines)."""
    plan, size = validation_plan(config), config.data.val_batch_size or len(jobs)
    groups: list[Group] = []
    for start in range(0, len(jobs), size):
        groups += workers.collect(workers.submit(jobs[start : start + size], plan))
    return groups, validation_metrics(groups, plan.n, config.trainer.val_success_threshold)
