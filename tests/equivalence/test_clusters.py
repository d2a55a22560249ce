"""The same run on every kind of cluster: one process, Ray workers, two FSDP2 ranks, either engine."""

from __future__ import annotations

import pytest

from sdpo.algorithms.registry import build_algorithm
from sdpo.algorithms.rows import train_batch
from sdpo.config.compose import compose
from sdpo.models.load import load_tokenizer
from sdpo.records import StepReport, TrainBatch
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer
from sdpo.training.jobs import load_jobs
from sdpo.training.run import start_workers
from sdpo.workers.rollout import SamplingPlan

SMALL = [
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
    "data.train_max_samples=16",
    "data.val_max_samples=8",
]
PLAN = SamplingPlan(n=4, temperature=1.0, top_p=1.0, top_k=-1, max_tokens=48, seed=0, step=1)


def _config(*overrides: str):
    return compose([*SMALL, *overrides], "sdpo")


def _batch(config) -> TrainBatch:
    """One rollout batch, drawn and graded in this process."""
    chat = ChatRenderer(load_tokenizer(config.actor_rollout_ref.model), config.data.apply_chat_template_kwargs)
    algorithm = build_algorithm(config, RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat, 0))
    workers = start_workers(config, "cpu", 10)
    try:
        workers.sync_weights()
        groups = workers.collect(workers.submit(load_jobs(config, chat, "train")[:4], PLAN))
        return train_batch(groups, algorithm.route(groups, 1), config.actor_rollout_ref.actor)
    finally:
        workers.close()


def _two_updates(config, batch: TrainBatch) -> list[StepReport]:
    workers = start_workers(config, "cpu", 10)
    try:
        return [workers.update(batch), workers.update(batch)]
    finally:
        workers.close()


@pytest.fixture(scope="module")
def inline() -> tuple[TrainBatch, list[StepReport]]:
    config = _config("cluster=inline", "actor_rollout_ref.rollout.name=hf")
    batch = _batch(config)
    assert batch.mini_batches[0].rows
    return batch, _two_updates(config, batch)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ray_workers_take_the_steps_of_one_process_on_the_same_rollouts(inline, ranks):
    batch, expected = inline
    config = _config("cluster=ray", "actor_rollout_ref.rollout.name=hf", f"trainer.n_gpus_per_node={ranks}")
    reports = _two_updates(config, batch)
    assert [r.policy_version for r in reports] == [1, 2]
    rows = {(row.prompt_uid, row.sample_index) for row in batch.mini_batches[0].rows}
    for version, report in enumerate(reports):  # lines for tokens.jsonl come with the report of the first rank
        assert {line["policy_version"] for line in report.tokens} == {version}
        assert {(line["uid"], line["index"]) for line in report.tokens} <= rows
    for key in ("actor/loss", "actor/grad_norm", "sdpo/divergence", "actor/entropy"):
        assert reports[0].metrics[key] == pytest.approx(expected[0].metrics[key], rel=1e-5), key
        assert reports[1].metrics[key] == pytest.approx(expected[1].metrics[key], rel=5e-3), key


def test_two_vllm_engines_sample_from_the_students_weights_before_and_after_an_update(inline):
    """The samplers' log-probs are the trainer's: the first update reports their difference on vLLM's own rollouts."""
    config = _config("cluster=ray", "actor_rollout_ref.rollout.replicas=2")
    chat = ChatRenderer(load_tokenizer(config.actor_rollout_ref.model), config.data.apply_chat_template_kwargs)
    algorithm = build_algorithm(config, RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat, 0))
    workers = start_workers(config, "cpu", 10)
    try:
        jobs = load_jobs(config, chat, "train")[:4]
        for version in (0, 1):
            workers.sync_weights()
            groups = workers.collect(workers.submit(jobs, PLAN))
            assert [g.prompt.uid for g in groups] == [job.prompt.uid for job in jobs]
            assert {s.policy_version for g in groups for s in g.samples} == {version}
            assert all(s.grade.graded for g in groups for s in g.samples)
            batch = train_batch(groups, algorithm.route(groups, version + 1), config.actor_rollout_ref.actor)
            report = workers.update(batch)
            assert report.metrics["rollout/log_prob_diff_max"] < 1e-3
    finally:
        workers.close()
