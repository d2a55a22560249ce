"""What is taken off rewards before they are compared, and what of a rollout batch is left to train on, in numbers."""

from __future__ import annotations

from dataclasses import replace

from sdpo.algorithms.rows import fraction, rows_of, usable
from sdpo.algorithms.shaping import overlong_penalty
from sdpo.config.schema import Config
from sdpo.records import Group, MiniBatch, PolicyGradient, TrainRow
from sdpo.workers.group import Workers


def note_kl(groups: list[Group], workers: Workers) -> None:
    """Sets `kl` of every usable sample: under the weights that drew it, before they move."""
    samples = [sample for group in groups for sample in group.samples if usable(sample)]
    rows: list[TrainRow] = []
    for number, sample in enumerate(samples):
        rows += (replace(row, sequence=number) for row in rows_of(sample, policy_gradient=PolicyGradient(0.0)))
    if rows:
        for number, kl in workers.reference_kl(MiniBatch(rows)).items():
            samples[number].kl = kl


def shaping_metrics(kept: list[Group], drawn: list[Group], config: Config) -> dict[str, float]:
    """Only of what is switched on. kept: the groups that are trained on, of those that were drawn."""
    samples = [sample for group in kept for sample in group.samples if usable(sample)]
    metrics = {}
    if config.algorithm.use_kl_in_reward:
        per_token = [sample.kl / len(sample.response_ids) for sample in samples]
        metrics["actor/reward_kl_penalty"] = fraction(sum(per_token), len(samples))
        metrics["actor/reward_kl_penalty_coeff"] = config.algorithm.kl_ctrl.kl_coef
    if config.reward_model.overlong_buffer.enable:
        penalties = [overlong_penalty(len(sample.response_ids), config) for sample in samples]
        metrics["train/overlong_penalty"] = fraction(sum(penalties), len(samples))
    if config.algorithm.filter_groups.enable:
        metrics["train/gen_batches"] = fraction(len(drawn), config.data.train_batch_size)
        metrics["train/trained_groups"] = float(len(kept))
    return metrics
