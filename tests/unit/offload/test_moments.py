"""AdamW's moments in a file between two steps: the same numbers, out of memory in the passes; after a resume, too."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from sdpo.config.schema import Config
from sdpo.errors import ConfigError, ModelError
from sdpo.offload.moments import NAMES
from sdpo.records import MiniBatch
from sdpo.training.run import check_device
from sdpo.workers.actor import Actor, split_over_ranks
from tests.unit.offload.resident import in_memory


def _actor(config: Config, folder: Path, offload: bool = True) -> Actor:
    config.actor_rollout_ref.actor.fsdp_config.optimizer_offload = offload
    config.trainer.default_local_dir = str(folder)
    return Actor(config, 0, 1, "cpu", total_steps=10)


def _update(actor: Actor, *batches: MiniBatch) -> dict[str, float]:
    return actor.update(split_over_ranks(list(batches), actor.config.actor_rollout_ref.actor, 1)[0]).metrics


def _moments(actor: Actor) -> list[torch.Tensor]:
    return [actor.optimizer.state[p][name] for p in actor.student.parameters() for name in NAMES]


def _only_in_file(actor: Actor) -> bool:
    """Whether every moment lies in a mapped file of the run folder, and no page of it is in memory."""
    folder = actor.config.trainer.default_local_dir
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if f" {folder}/" in line:
            start, end = line.split()[0].split("-")
            ranges.append(range(int(start, 16), int(end, 16)))
    moments = _moments(actor)
    inside = all(any(m.data_ptr() in r and m.data_ptr() + m.nbytes - 1 in r for r in ranges) for m in moments)
    return bool(moments) and inside and not any(map(in_memory, moments))


def _assert_equal_bits(actor: Actor, other: Actor) -> None:
    for (name, p), q in zip(actor.student.named_parameters(), other.student.parameters(), strict=True):
        assert torch.equal(p, q), name
        mine, theirs = actor.optimizer.state[p], other.optimizer.state[q]
        assert mine.keys() == theirs.keys() == {"step", *NAMES}
        for key in mine:
            assert torch.equal(mine[key], theirs[key]), f"{name} {key}"


def test_moments_in_a_file_are_the_same_moments(actor_config, mini_batch, tmp_path):
    stays, offloaded = (_actor(actor_config, tmp_path / str(offload), offload) for offload in (False, True))
    for _ in range(2):
        assert _update(offloaded, mini_batch, mini_batch) == _update(stays, mini_batch, mini_batch)
        assert _only_in_file(offloaded)
        assert not _only_in_file(stays)
    assert all(map(torch.Tensor.any, _moments(offloaded)))
    _assert_equal_bits(offloaded, stays)
    assert not list((tmp_path / "True").iterdir())  # the moments' file has no name


def test_every_pass_finds_the_moments_out_of_memory(actor_config, mini_batch, tmp_path):
    actor = _actor(actor_config, tmp_path)
    seen = []
    embedding = actor.student.lm.get_input_embeddings()
    embedding.register_forward_pre_hook(lambda *_: seen.append(_only_in_file(actor)) if actor.policy_version else None)
    _update(actor, mini_batch, mini_batch, mini_batch)
    assert len(seen) >= 2 and all(seen)


@pytest.mark.parametrize("steps_before", [0, 1])  # a fresh optimizer has no moments, a used one has other ones
def test_a_resumed_run_has_its_moments_in_the_file_again(actor_config, mini_batch, tmp_path, steps_before):
    straight = _actor(actor_config, tmp_path / "straight")
    _update(straight, mini_batch, mini_batch)
    straight.save(str(tmp_path / "checkpoint"))
    assert _only_in_file(straight)
    for offload in (True, False):  # it does not matter to a checkpoint who wrote or reads it
        resumed = _actor(actor_config, tmp_path / f"resumed {offload}", offload)
        _update(resumed, *[MiniBatch(mini_batch.rows[:2])] * steps_before)
        resumed.load(str(tmp_path / "checkpoint"))
        assert _only_in_file(resumed) == offload
        _assert_equal_bits(resumed, straight)
        if offload:
            _update(straight, mini_batch)
            _update(resumed, mini_batch)
            assert _only_in_file(resumed)
            _assert_equal_bits(resumed, straight)
            straight.load(str(tmp_path / "checkpoint"))


def test_a_checkpoint_before_the_first_step_can_be_written(actor_config, tmp_path):
    actor = _actor(actor_config, tmp_path / "run")
    actor.save(str(tmp_path / "checkpoint"))
    assert _only_in_file(actor) and not any(map(torch.Tensor.any, _moments(actor)))


def test_a_disk_that_cannot_hold_them_is_said_at_the_start(actor_config, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ModelError, match=r"^optimizer_offload: the moments' \d+ MiB do not fit in .*too large$"):
            _actor(actor_config, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("change", ["ranks", "dtype"])
def test_it_is_refused_on_a_cpu_where_it_means_nothing(actor_config, change):
    fsdp = actor_config.actor_rollout_ref.actor.fsdp_config
    fsdp.optimizer_offload = True
    check_device(actor_config, "cpu")
    if change == "ranks":
        actor_config.trainer.nnodes = 2
    else:
        fsdp.param_dtype = "bfloat16"
    allowed = r"fsdp_config\.optimizer_offload: got True; allowed: false on a CPU, except with one rank in float32"
    with pytest.raises(ConfigError, match=allowed):
        check_device(actor_config, "cpu")
    check_device(actor_config, "cuda")
