"""The same run on every kind of cluster: one process, Ray workers, two FSDP2 ranks, either engine."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
import ray

from sdpo.algorithms.registry import build_algorithm
from sdpo.algorithms.rows import rows_of, train_batch
from sdpo.config.compose import compose
from sdpo.errors import ClusterError
from sdpo.models.load import load_tokenizer
from sdpo.records import MiniBatch, PolicyGradient, Sample, StepReport, TrainBatch, TrainRow
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
EPISODES = replace(PLAN, max_tokens=120)  # two turns, and what is said in between


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


def _broken_collective() -> None:
    raise ray.exceptions.RayTaskError("update", "", RuntimeError("connection closed by peer"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_ray_workers_take_the_steps_of_one_process_on_the_same_rollouts_and_a_death_is_named(inline, ranks):
    batch, expected = inline
    config = _config("cluster=ray", "actor_rollout_ref.rollout.name=hf", f"trainer.n_gpus_per_node={ranks}")
    workers = start_workers(config, "cpu", 10)
    try:
        reports = [workers.update(batch), workers.update(batch)]
        last = workers._actors.workers[-1]  # of two ranks, the other sees a broken collective
        os.kill(ray.get(last.__ray_call__.remote(lambda worker: os.getpid())), signal.SIGKILL)
        for work in (lambda: workers.update(batch), _broken_collective):  # whichever is heard of first
            with pytest.raises(ClusterError, match=f"the actor process {ranks - 1} on .* died .*was it killed"):
                workers._call(work)
    finally:
        workers.close()
    assert [r.policy_version for r in reports] == [1, 2]
    rows = {(row.prompt_uid, row.sample_index) for row in batch.mini_batches[0].rows}
    for version, report in enumerate(reports):  # lines for tokens.jsonl come with the report of the first rank
        assert {line["policy_version"] for line in report.tokens} == {version}
        assert {(line["uid"], line["index"]) for line in report.tokens} <= rows
    for key in ("actor/loss", "actor/grad_norm", "sdpo/divergence", "actor/entropy"):
        assert reports[0].metrics[key] == pytest.approx(expected[0].metrics[key], rel=1e-5), key
        assert reports[1].metrics[key] == pytest.approx(expected[1].metrics[key], rel=5e-3), key


# Two turns for every other prompt, a tool result in between; what the engine was given and gave is in the flags.
RECORDED = """
import json
from dataclasses import replace
from sdpo.environments.episode import Episode

class Recorded:
    async def run(self, prompt, policy, grade):
        seen, engine = [], policy._engine
        class Engine:
            stop_ids, max_model_len = engine.stop_ids, engine.max_model_len
            async def generate(self, request):
                found = await engine.generate(request)
                seen.append([request.prompt_ids, found.response_ids, found.log_probs])
                return found
        policy._engine = Engine()
        answer = await policy.reply()
        if sum(prompt.uid.encode()) % 2:
            answer.feedback = "Got: 7"
            answer = await policy.reply({"role": "tool", "content": "Got: 7"})
        verdict = await grade(answer)
        return Episode(answer, replace(verdict, flags=(json.dumps(seen),)))
"""


def _assert_as_the_engine_saw_it(sample: Sample) -> None:
    seen = json.loads(sample.grade.flags[0])
    assert sample.response_ids == [i for _, response, _ in seen for i in response]
    assert sample.sampler_logprobs == [p for _, _, log_probs in seen for p in log_probs]
    for turn, (context, response, _) in zip(sample.turns, seen if sample.turns else [], strict=True):
        ids = sample.sequences[turn.sequence]
        assert ids[: turn.span[0]] == context and ids[slice(*turn.span)] == response


def _assert_turns_have_the_gradient_of_rows_of_their_own(episodes: list[Sample]) -> None:
    both = [row for sample in episodes for row in rows_of(sample, policy_gradient=PolicyGradient(0.5))]
    apart = []
    for sample in episodes:
        for turn, (context, response, log_probs) in zip(sample.turns, json.loads(sample.grade.flags[0]), strict=True):
            row = TrainRow.single_turn(sample.prompt_uid, len(apart), context, response, sampler_logprobs=log_probs)
            row.policy_gradient = PolicyGradient(0.5)
            apart.append(row)
            assert turn.finish_reason
    assert len(both) == len(episodes) and len(apart) == 2 * len(both)
    config = _config(
        "cluster=inline", "actor_rollout_ref.rollout.name=hf", "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
    )
    one, other = (_two_updates(config, TrainBatch([MiniBatch(rows)]))[0].metrics for rows in (both, apart))
    assert one["actor/grad_norm"] > 1e-3
    for name in ("actor/loss", "actor/grad_norm", "actor/entropy"):
        assert one[name] == pytest.approx(other[name], rel=1e-5), name


def test_two_vllm_engines_sample_from_the_students_weights_before_and_after_an_update(inline, tmp_path):
    """The samplers' log-probs are the trainer's: the first update reports their difference on vLLM's own rollouts, also
    of second turns."""
    (tmp_path / "recorded.py").write_text(RECORDED)
    environment = f"actor_rollout_ref.rollout.environment.path={tmp_path}/recorded.py"
    name = "actor_rollout_ref.rollout.environment.name=Recorded"
    longer = "data.max_response_length=120"
    config = _config("cluster=ray", "actor_rollout_ref.rollout.replicas=2", environment, name, longer)
    chat = ChatRenderer(load_tokenizer(config.actor_rollout_ref.model), config.data.apply_chat_template_kwargs)
    algorithm = build_algorithm(config, RepromptBuilder(config.actor_rollout_ref.actor.self_distillation, chat, 0))
    workers = start_workers(config, "cpu", 10)
    try:
        jobs = load_jobs(config, chat, "train")[:4]
        for version in (0, 1):
            workers.sync_weights()
            groups = workers.collect(workers.submit(jobs, EPISODES))
            assert [g.prompt.uid for g in groups] == [job.prompt.uid for job in jobs]
            assert {s.policy_version for g in groups for s in g.samples} == {version}
            samples = [s for g in groups for s in g.samples]
            assert all(s.grade.graded for s in samples)
            assert {len(s.turns) for s in samples} == {0, 2}
            for sample in samples:
                _assert_as_the_engine_saw_it(sample)
            batch = train_batch(groups, algorithm.route(groups, version + 1), config.actor_rollout_ref.actor)
            report = workers.update(batch)
            assert report.metrics["rollout/log_prob_diff_max"] < 1e-3
    finally:
        workers.close()
    _assert_turns_have_the_gradient_of_rows_of_their_own([s for s in samples if s.turns])
