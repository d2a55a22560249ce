"""Settings of the actor count whatever the number of ranks, and after a resume."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from sdpo.errors import ConfigError
from sdpo.training.run import check_device
from sdpo.weights.source import WeightSource
from sdpo.workers.actor import Actor, split_over_ranks
from tests.unit.offload.resident import in_memory


def _step(config, batch):
    actor = Actor(config, 0, 1, "cpu", total_steps=10)
    report = actor.update(split_over_ranks([batch], config.actor_rollout_ref.actor, 1)[0])
    return actor, report.metrics


def test_one_rank_computes_in_the_parameter_dtype_and_keeps_float32_masters(
    actor_config, mini_batch, no_process_group, tmp_path
):
    plain, exact = _step(actor_config, mini_batch)
    assert not isinstance(plain.student, FSDPModule)
    actor_config.actor_rollout_ref.actor.fsdp_config.param_dtype = "bfloat16"
    actor, rounded = _step(actor_config, mini_batch)
    for name in ("actor/loss", "actor/grad_norm"):
        assert rounded[name] != exact[name]
        assert rounded[name] == pytest.approx(exact[name], rel=0.1)
    assert {p.dtype for p in actor.student.parameters()} == {torch.float32}
    actor.save(str(tmp_path / "actor"))
    again = Actor(actor_config, 0, 1, "cpu", total_steps=10)
    again.load(str(tmp_path / "actor"))
    before, after = dict(WeightSource(actor.student.lm)), dict(WeightSource(again.student.lm))
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_resumed_run_goes_on_in_the_schedule_with_the_rates_of_its_own_settings(actor_config, mini_batch, tmp_path):
    optim = actor_config.actor_rollout_ref.actor.optim
    optim.lr_warmup_steps = 4
    actor, _ = _step(actor_config, mini_batch)
    actor.save(str(tmp_path / "actor"))
    optim.lr, optim.weight_decay = 3e-3, 0.25
    resumed = Actor(actor_config, 0, 1, "cpu", total_steps=10)
    resumed.load(str(tmp_path / "actor"))
    (group,) = resumed.optimizer.param_groups
    assert group["lr"] == pytest.approx(3e-3 * 2 / 4)  # the second of four steps of warm-up
    assert group["weight_decay"] == 0.25
    report = resumed.update(split_over_ranks([mini_batch], actor_config.actor_rollout_ref.actor, 1)[0])
    assert report.metrics["actor/lr"] == pytest.approx(3e-3 * 3 / 4)


def test_an_offloaded_teacher_scores_and_follows_like_one_that_stays(
    actor_config, mini_batch, no_process_group, monkeypatch
):
    """The CPU is the device too here: what is tested is FSDP2's own streaming, layer by layer, and the average."""
    stays, wanted = _step(actor_config, mini_batch)
    monkeypatch.setattr(Actor, "_build_teacher_module", lambda actor: actor._build_module(offload=True))
    streamed, found = _step(actor_config, mini_batch)
    assert isinstance(streamed.teacher.module, FSDPModule) and not isinstance(streamed.student, FSDPModule)
    assert found["actor/loss"] == pytest.approx(wanted["actor/loss"], rel=1e-6)
    before, after = dict(WeightSource(stays.teacher.module.lm)), dict(WeightSource(streamed.teacher.module.lm))
    for name in before:
        torch.testing.assert_close(after[name], before[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust-region"])
def test_a_teacher_in_a_file_is_the_same_teacher(actor_config, mini_batch, tmp_path, kind):
    distillation = actor_config.actor_rollout_ref.actor.self_distillation
    distillation.teacher_regularization = kind
    shares = split_over_ranks([mini_batch] * 3, actor_config.actor_rollout_ref.actor, 1)[0]
    stays = Actor(actor_config, 0, 1, "cpu", total_steps=10)
    wanted = stays.update(shares).metrics
    distillation.teacher_offload = True
    actor_config.trainer.default_local_dir = str(tmp_path / "run")
    offloaded = Actor(actor_config, 0, 1, "cpu", total_steps=10)
    assert offloaded.update(shares).metrics == wanted
    offloaded.save(str(tmp_path / "actor"))
    assert not any(map(in_memory, offloaded.teacher.module.parameters()))
    resumed = Actor(actor_config, 0, 1, "cpu", total_steps=10)
    resumed.load(str(tmp_path / "actor"))
    before = stays.teacher.module.state_dict()
    for actor in (offloaded, resumed):
        assert all(torch.equal(tensor, before[name]) for name, tensor in actor.teacher.module.state_dict().items())
    assert not list((tmp_path / "run").iterdir())  # the weights' file has no name


def test_offload_is_refused_on_a_cpu_where_it_means_nothing(actor_config):
    actor = actor_config.actor_rollout_ref.actor
    actor.self_distillation.teacher_offload = True
    check_device(actor_config, "cpu")  # in a file
    actor_config.trainer.n_gpus_per_node = 2
    with pytest.raises(ConfigError, match="teacher_offload: got True; allowed: false on a CPU, except with one rank"):
        check_device(actor_config, "cpu")
    actor.fsdp_config.offload_policy = True
    with pytest.raises(ConfigError, match="fsdp_config.offload_policy: got True; allowed: false on a CPU"):
        check_device(actor_config, "cpu")
    check_device(actor_config, "cuda")


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust-region"])
def test_a_teacher_kept_in_bfloat16_scores_like_one_in_float32(actor_config, mini_batch, no_process_group, kind):
    """The passes are in bfloat16 either way; only the average of several steps may round differently."""
    actor = actor_config.actor_rollout_ref.actor
    actor.fsdp_config.param_dtype, actor.self_distillation.teacher_regularization = "bfloat16", kind
    actor.optim.lr = 1e-4
    found = []
    for dtype in ("float32", "bfloat16"):
        actor.self_distillation.teacher_master_dtype = dtype
        made = Actor(actor_config, 0, 1, "cpu", total_steps=10)
        assert {p.dtype for p in made.teacher.module.parameters()} == {getattr(torch, dtype)}
        assert {p.dtype for p in made.student.parameters()} == {torch.float32}
        shares = split_over_ranks([mini_batch], actor, 1)[0]
        found.append([made.update(shares).metrics["actor/loss"] for _ in range(3)])
    assert found[0][0] == found[1][0]
    assert found[0] == (found[1] if kind != "ema" else pytest.approx(found[1], rel=1e-2))


def test_a_resumed_bfloat16_teacher_has_its_remainders_too(actor_config, mini_batch, no_process_group, tmp_path):
    actor = actor_config.actor_rollout_ref.actor
    actor.fsdp_config.param_dtype = actor.self_distillation.teacher_master_dtype = "bfloat16"
    shares = split_over_ranks([mini_batch] * 2, actor, 1)[0]
    first, second = (Actor(actor_config, 0, 1, "cpu", total_steps=10) for _ in "12")
    first.update(shares)
    first.save(str(tmp_path / "actor"))
    second.load(str(tmp_path / "actor"))
    for _ in range(2):
        assert any(remainder.full_tensor().any() for remainder in first.teacher.remainders.values())
        for name, remainder in first.teacher.remainders.items():
            assert torch.equal(second.teacher.remainders[name].full_tensor(), remainder.full_tensor()), name
        before, after = (dict(WeightSource(made.teacher.module.lm)) for made in (first, second))
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert first.update(shares).metrics == second.update(shares).metrics
