"""A teacher in a group of its own gives the losses of one beside the student: what it says travels, nothing else."""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest
import torch

from sdpo.config.schema import Config
from sdpo.errors import CheckpointError, ClusterError
from sdpo.records import Distillation, MiniBatch, PolicyGradient, StepReport
from sdpo.workers.actor import Actor, split_over_ranks
from sdpo.workers.teacher_server import InlineServers, TeacherServer

TARGETS = {
    "hidden": {},
    "top-k of the student": {"distillation_topk": 4, "support": "student"},
    "top-k of the teacher": {"distillation_topk": 4, "support": "teacher", "distillation_add_tail": False},
    "top-k of both": {"distillation_topk": 3, "support": "union", "alpha": 1.0},
    "sampled token": {"full_logit_distillation": False, "alpha": 1.0},
}


# Per token: 32 numbers; else the sampled id, its log-prob and the entropy, with a support also the log of the mass
# outside, and 4 per id and per log-prob.
BYTES = {
    "hidden": 32 * 4,
    "top-k of the student": 16 + 4 * 8,
    "top-k of the teacher": 16 + 4 * 8,
    "top-k of both": 16 + 6 * 8,
    "sampled token": 12,
}


def configured(config: Config, **settings) -> Config:
    config = copy.deepcopy(config)
    config.actor_rollout_ref.ref.placement = "remote"
    distillation = config.actor_rollout_ref.actor.self_distillation
    distillation.teacher_update_rate = 0.2
    for name, value in settings.items():
        assert hasattr(distillation, name)
        setattr(distillation, name, value)
    return config


def inline(config: Config) -> Actor:
    return Actor(config, 0, 1, "cpu", 20, InlineServers(TeacherServer(config, 0, 1, "cpu")))


def beside(config: Config) -> Actor:
    return Actor(config, 0, 1, "cpu", 20)


def steps(actor: Actor, batch: MiniBatch, count: int) -> list[StepReport]:
    shares = split_over_ranks([batch], actor.config.actor_rollout_ref.actor, 1)[0]
    return [actor.update(shares) for _ in range(count)]


def assert_equal(found: list[StepReport], wanted: list[StepReport]) -> None:
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert other.metrics.keys() == one.metrics.keys() - {"sdpo/teacher_bytes_per_token"}
        for name, value in other.metrics.items():
            assert one.metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), (number, name)
        for line, same in zip(one.tokens, other.tokens, strict=True):
            assert line["tokens"] == same["tokens"] and line["teacher"] == pytest.approx(same["teacher"], abs=2e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_ten_steps_of_ema_have_the_losses_of_the_teacher_beside_the_student(actor_config, mini_batch, target):
    actor_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 3
    config = configured(actor_config, **TARGETS[target])
    wanted = steps(beside(config), mini_batch, 10)
    found = steps(inline(config), mini_batch, 10)
    assert_equal(found, wanted)
    for report in found:
        assert report.metrics["sdpo/teacher_bytes_per_token"] == BYTES[target]
    losses = [report.metrics["actor/loss"] for report in wanted]
    assert len({round(loss, 6) for loss in losses}) == 10  # the teacher moves, or they would not


@pytest.mark.parametrize("seed", range(8))
def test_neighbours_drawn_at_random(actor_config, mini_batch, seed):
    """Rows without a teacher, spans, several optimizer steps and epochs, weights and caps, padded rows."""
    draw = random.Random(seed)
    target = draw.choice([*TARGETS])
    interval = draw.choice(["batch", "optimizer_step"])
    clip = draw.choice([None, 0.5])
    config = configured(actor_config, teacher_update_interval=interval, divergence_clip=clip, **TARGETS[target])
    actor = config.actor_rollout_ref.actor
    actor.policy_loss.loss_mode, actor.ppo_epochs = draw.choice(["sdpo", "srpo"]), draw.choice([1, 2])
    actor.ppo_micro_batch_size_per_gpu = draw.choice([1, 2, None])
    actor.loss_agg_mode = draw.choice(["token-mean", "seq-mean-token-mean"])
    actor.entropy_coeff = draw.choice([0.0, 0.01])
    config.actor_rollout_ref.rollout.temperature = draw.choice([0.7, 1.0])
    if draw.random() < 0.3:
        config.actor_rollout_ref.model.attn_implementation = "eager"  # padded
    rows = [copy.copy(row) for row in mini_batch.rows]
    for row in rows:
        start, stop = row.spans[0]
        context = row.distillation[0].context_ids
        if stop - start > 2:  # two spans with a gap, in another order of contexts
            row.distillation = (Distillation((start, start + 1), context), Distillation((stop - 1, stop), context[1:]))
        if actor.policy_loss.loss_mode == "srpo" and draw.random() < 0.4:
            row.distillation, row.policy_gradient = (), PolicyGradient(draw.uniform(-1, 1))
    cut = draw.randrange(1, len(rows))
    batches = [MiniBatch(rows[:cut]), MiniBatch(rows[cut:])]
    reports = []
    for made in (inline(config), beside(config)):
        shares = split_over_ranks(batches, actor, 1, made.prefix_sharing_unsupported is not None)[0]
        reports.append([made.update(shares) for _ in range(3)])
    assert_equal(*reports)


def test_a_snapshot_is_the_student_of_every_third_batch_also_after_a_resume(actor_config, mini_batch, tmp_path):
    config = configured(actor_config, teacher_regularization="snapshot", teacher_snapshot_every=3)
    actor, at_third = beside(config), None
    for number in range(1, 8):
        steps(actor, mini_batch, 1)
        student, teacher = ([p.clone() for p in m.parameters()] for m in (actor.student, actor.teacher.module))
        at_third = student if number % 3 == 0 else at_third
        assert number < 3 or all(map(torch.equal, teacher, at_third)), number
        if number == 4:
            actor.save(str(tmp_path / "actor"))
            actor = beside(config)
            actor.load(str(tmp_path / "actor"))


@pytest.mark.parametrize("kind", ["frozen", "trust-region", "snapshot"])
@pytest.mark.parametrize("target", ["hidden", "top-k of the student"])
def test_every_other_kind_with_weights_of_its_own_may_be_elsewhere(actor_config, mini_batch, kind, target):
    config = configured(actor_config, teacher_regularization=kind, teacher_snapshot_every=3, **TARGETS[target])
    wanted = steps(beside(config), mini_batch, 7)
    assert_equal(steps(inline(config), mini_batch, 7), wanted)


@pytest.mark.parametrize("target", ["hidden", "sampled token"])
@pytest.mark.parametrize(("saves", "loads"), [(inline, inline), (inline, beside), (beside, inline)])
def test_a_resumed_teacher_is_the_one_that_was_saved(actor_config, mini_batch, tmp_path, target, saves, loads):
    config = configured(actor_config, **TARGETS[target])
    unbroken = saves(config)
    steps(unbroken, mini_batch, 3)
    unbroken.save(str(tmp_path / "actor"))
    resumed = loads(config)
    steps(resumed, mini_batch, 1)  # what it has before must not matter
    resumed.load(str(tmp_path / "actor"))
    found, wanted = steps(resumed, mini_batch, 2), steps(unbroken, mini_batch, 2)
    if saves is loads:
        assert [report.metrics for report in found] == [report.metrics for report in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.metrics["actor/loss"] == pytest.approx(other.metrics["actor/loss"], rel=1e-5)


def test_a_checkpoint_without_a_teacher_is_refused(actor_config, tmp_path):
    live = configured(actor_config, teacher_regularization="live")
    beside(live).save(str(tmp_path / "actor"))
    with pytest.raises(CheckpointError, match="holds no teacher"):
        inline(configured(actor_config)).load(str(tmp_path / "actor"))


@pytest.mark.parametrize("master", ["float32", "bfloat16"])
def test_in_bfloat16_too(actor_config, mini_batch, no_process_group, master):
    actor_config.actor_rollout_ref.actor.fsdp_config.param_dtype = "bfloat16"
    config = configured(actor_config, teacher_master_dtype=master)
    wanted = steps(beside(config), mini_batch, 5)
    assert_equal(steps(inline(config), mini_batch, 5), wanted)


@pytest.mark.parametrize("target", ["hidden", "top-k of the student", "sampled token"])
def test_a_pass_that_fails_there_fails_here(actor_config, mini_batch, target, monkeypatch):
    """And what the server still has of the one before answers nothing."""
    actor = inline(configured(actor_config, **TARGETS[target]))
    steps(actor, mini_batch, 1)
    monkeypatch.setattr(actor.teacher.servers, "ask", LateServers(actor.teacher.servers.server).ask)
    monkeypatch.setattr(actor.teacher.servers.server.teacher, "scores", lambda side: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        steps(actor, mini_batch, 1)


class LateServers(InlineServers):
    """As through Ray: what a call raises comes when it is waited for."""

    def ask(self, method, *arguments):
        try:
            return super().ask(method, *arguments)
        except Exception as error:  # of any kind, for later
            late = error

        def wait():
            raise late

        return wait


@pytest.mark.parametrize(("ranks", "servers"), [(1, 1), (4, 2), (6, 3), (2, 4), (1, 3), (3, 3)])
def test_every_server_goes_through_as_many_passes(ranks, servers):
    from sdpo.workers.ray_teacher import serving

    numbers = [serving(rank, ranks, servers) for rank in range(ranks)]
    assert all(numbers)
    assert len(set(Counter(sum(numbers, [])).values())) == 1 and set(sum(numbers, [])) == set(range(servers))


def test_gpus_that_a_remote_teacher_would_wait_for_are_missed_at_the_start(actor_config, monkeypatch):
    from sdpo.workers import placement
    from sdpo.workers.layout import Node

    config = configured(actor_config)
    config.trainer.device, config.trainer.n_gpus_per_node, config.actor_rollout_ref.ref.ranks = "cuda", 2, 1
    room = {"GPU": 2.0, "CPU": 8.0}
    monkeypatch.setattr(placement, "_nodes", lambda: [Node("a", "10.0.0.1", room, room)])
    with pytest.raises(ClusterError, match=r"teacher's 1 ranks on one node: the cluster is too small.*2 of 2 GPUs"):
        placement.find_places(config, "cuda")
