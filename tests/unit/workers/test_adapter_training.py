"""An actor that trains an adapter: the weights below it stand still, and everything else is as for full training."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sdpo.config.schema import Config
from sdpo.errors import CheckpointError
from sdpo.models.adapters import STUDENT, TEACHER, adapted, adapter_tensors, of_adapter, product
from sdpo.models.shard import local
from sdpo.records import MiniBatch, PolicyGradient
from sdpo.tokens.packing import pack_micro_batch
from sdpo.tokens.partition import MicroBatchRows
from sdpo.weights.source import WeightSource
from sdpo.workers.actor import Actor, split_over_ranks

KINDS = ("ema", "snapshot", "frozen", "live", "trust-region")


@pytest.fixture
def lora_config(actor_config) -> Config:
    model = actor_config.actor_rollout_ref.model
    model.lora_rank, model.lora_alpha = 4, 8
    actor_config.actor_rollout_ref.actor.self_distillation.teacher_snapshot_every = 1
    return actor_config


def _actor(config: Config, kind: str | None = None) -> Actor:
    if kind:
        config.actor_rollout_ref.actor.self_distillation.teacher_regularization = kind
    return Actor(config, 0, 1, "cpu", total_steps=10)


def _update(actor: Actor, *batches: MiniBatch):
    return actor.update(split_over_ranks(list(batches), actor.config.actor_rollout_ref.actor, 1)[0])


def _use_grpo(config: Config, batch: MiniBatch) -> None:
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    for i, row in enumerate(batch.rows):
        row.policy_gradient, row.distillation = PolicyGradient((-1.0) ** i * 0.5), ()


def _adapter(actor: Actor, which: str = STUDENT) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in adapter_tensors(actor.student.lm, which)}


def _base(actor: Actor) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in actor.student.named_parameters() if not of_adapter(name)}


def _randomize(actor: Actor, which: str = STUDENT, scale: float = 0.3) -> None:
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, p in actor.student.named_parameters():
            if of_adapter(name, which) and ".lora_B." in name:
                p.copy_(scale * torch.randn(p.shape, generator=draw))


@pytest.fixture
def start_folder(lora_config, tmp_path) -> str:
    """An adapter that does something."""
    actor = _actor(lora_config)
    _randomize(actor)
    actor.export(str(tmp_path / "start"))
    return str(tmp_path / "start")


@pytest.mark.parametrize("mode", ["sdpo", "vanilla"])
def test_the_base_is_the_same_bit_for_bit_after_updates_and_publishes(lora_config, mini_batch, mode, tmp_path):
    if mode == "vanilla":
        _use_grpo(lora_config, mini_batch)
    actor = _actor(lora_config)
    before, adapter = _base(actor), _adapter(actor)
    for _ in range(3):
        _update(actor, mini_batch)
        actor.publish(str(tmp_path))
        actor.export(str(tmp_path / "model"))
    assert all(torch.equal(before[name], value) for name, value in _base(actor).items())
    moved = _adapter(actor)
    assert not any(torch.equal(adapter[name], value) for name, value in moved.items())


@pytest.mark.parametrize("kind", ["ema", "frozen", "trust-region"])
def test_the_teacher_has_no_second_copy_of_the_weights(lora_config, mini_batch, kind):
    gc.collect()
    others = {id(t) for t in gc.get_objects() if isinstance(t, torch.Tensor)}
    actor = _actor(lora_config, kind)
    _update(actor, mini_batch)
    gc.collect()
    new = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and id(t) not in others]
    size = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in new}
    base = {p.data_ptr(): p.nbytes for n, p in actor.student.named_parameters() if not of_adapter(n)}
    adapters = sum(p.nbytes for n, p in actor.student.named_parameters() if of_adapter(n, STUDENT))
    of_the_teacher = 3 if kind == "ema" else 0  # times the student's adapter, which has two moments
    slack = 4096  # buffers, rows of the batch
    assert sum(size.values()) - sum(base.values()) <= adapters * (1 + 2 + of_the_teacher) + slack


def test_optimizer_and_checkpoint_hold_the_adapter_alone(lora_config, mini_batch, tmp_path):
    actor = _actor(lora_config)
    _update(actor, mini_batch)
    actor.save(str(tmp_path / "actor"))
    names = {n for n, _ in actor.student.named_parameters() if of_adapter(n, STUDENT)}
    assert sum(len(group["params"]) for group in actor.optimizer.param_groups) == len(names)
    from sdpo.workers.actor_state import _names

    held = {n for n in _names(str(tmp_path / "actor")) if n.startswith(("student.", "teacher."))}
    assert held == {f"student.{n}" for n in names} | {f"teacher.{n.replace('student', 'teacher')}" for n in names}


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        ("ema", {}),
        ("snapshot", {"use_rslora": True, "lora_dropout": 0.2}),
        ("frozen", {"use_dora": True}),
        ("trust-region", {}),
    ],
)
def test_resume_continues_bit_for_bit(lora_config, mini_batch, tmp_path, kind, variant):
    for name, value in variant.items():
        setattr(lora_config.actor_rollout_ref.model, name, value)
    straight = _actor(lora_config, kind)
    _update(straight, mini_batch)
    straight.save(str(tmp_path / "actor"))
    report = _update(straight, mini_batch)
    resumed = _actor(lora_config)
    resumed.load(str(tmp_path / "actor"))
    assert _update(resumed, mini_batch).metrics == report.metrics
    for (name, p), q in zip(straight.student.named_parameters(), resumed.student.parameters(), strict=True):
        assert torch.equal(p, q), name


def test_a_checkpoint_of_another_rank_or_of_full_training_is_refused(lora_config, mini_batch, tmp_path):
    actor = _actor(lora_config)
    actor.save(str(tmp_path / "adapter"))
    for rank in (3, 0):
        lora_config.actor_rollout_ref.model.lora_rank = rank
        with pytest.raises(CheckpointError):
            _actor(lora_config).load(str(tmp_path / "adapter"))


@pytest.mark.parametrize("mode", ["sdpo", "vanilla"])
@pytest.mark.parametrize("change", ["micro_batches", "padded", "checkpointing"])
def test_a_step_does_not_depend_on_how_it_is_computed(lora_config, mini_batch, mode, change):
    if mode == "vanilla":
        _use_grpo(lora_config, mini_batch)
    found = []
    for plain in (True, False):
        model, settings = lora_config.actor_rollout_ref.model, lora_config.actor_rollout_ref.actor
        if not plain and change == "micro_batches":
            settings.ppo_micro_batch_size_per_gpu = 2
        model.enable_gradient_checkpointing = not plain and change == "checkpointing"
        actor = _actor(lora_config)
        _randomize(actor)
        if not plain and change == "padded":
            actor.student.prefix_sharing_unsupported = "to compare"
        report = _update(actor, mini_batch)
        found.append((report.metrics, _adapter(actor)))
    for name in ("actor/loss", "actor/grad_norm", "actor/entropy"):
        assert found[1][0][name] == pytest.approx(found[0][0][name], rel=1e-5), name
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("teacher_first", [True, False])
def test_layers_computed_again_in_the_backward_pass_are_those_of_the_student(
    lora_config, mini_batch, kind, teacher_first
):
    """The teacher's pass goes through the same layers, with another adapter or none."""
    side = pack_micro_batch(MicroBatchRows(mini_batch.rows))
    gradients = []
    for again in (False, True):
        lora_config.actor_rollout_ref.model.enable_gradient_checkpointing = again
        actor = _actor(lora_config, kind)
        _randomize(actor)
        _randomize(actor, TEACHER, -0.5)
        if teacher_first:
            actor.teacher.scores(side.teacher)
        hidden = actor.student.scores(side.student).hidden
        if not teacher_first:
            actor.teacher.scores(side.teacher)
        hidden.square().sum().backward()
        gradients.append({n: p.grad for n, p in actor.student.named_parameters()})
    assert any(".lora_B." in name and g is not None and g.abs().sum() > 0 for name, g in gradients[0].items())
    for name, gradient in gradients[0].items():
        assert (gradient is None) == (not of_adapter(name, STUDENT)), name
        if gradient is not None:
            torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_pass_of_the_teacher_leaves_the_student_as_it_was(lora_config, mini_batch, kind, monkeypatch):
    actor = _actor(lora_config, kind)
    before, trained = _base(actor), [p.requires_grad for p in actor.student.parameters()]
    side = pack_micro_batch(MicroBatchRows(mini_batch.rows))
    monkeypatch.setattr(type(actor.student), "forward", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        actor.teacher.scores(side.teacher)
    monkeypatch.undo()
    assert all(layer.active_adapters == [STUDENT] for layer in adapted(actor.student.lm).values())
    assert actor.student.training and [p.requires_grad for p in actor.student.parameters()] == trained
    assert all(torch.equal(before[name], value) for name, value in _base(actor).items())


@pytest.mark.parametrize("from_folder", [True, False])
def test_the_reference_of_a_kl_is_the_start_beside_any_teacher(lora_config, mini_batch, from_folder, request):
    lora_config.actor_rollout_ref.actor.use_kl_loss = True
    lora_config.actor_rollout_ref.actor.policy_loss.loss_mode = "srpo"
    if from_folder:
        lora_config.actor_rollout_ref.model.lora_adapter_path = request.getfixturevalue("start_folder")
    actor = _actor(lora_config, "ema")
    side = pack_micro_batch(MicroBatchRows(mini_batch.rows)).student
    before = actor.student.scores(side).logits()
    _randomize(actor, scale=0.5)
    actor.teacher.update(actor.student)
    torch.testing.assert_close(actor.reference.scores(side).logits(), before, atol=1e-5, rtol=0)
    assert not torch.allclose(actor.teacher.scores(side).logits(), before, atol=1e-3)
    report = _update(actor, mini_batch)
    assert report.optimizer_steps == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("from_folder", [True, False])
def test_before_the_first_step_the_teacher_is_the_student(lora_config, mini_batch, kind, from_folder, request):
    """frozen and trust-region keep the policy that the run started from: with a start adapter not the bare base."""
    if from_folder:
        lora_config.actor_rollout_ref.model.lora_adapter_path = request.getfixturevalue("start_folder")
    actor = _actor(lora_config, kind)
    side = pack_micro_batch(MicroBatchRows(mini_batch.rows)).student
    logits = actor.student.scores(side).logits()
    torch.testing.assert_close(actor.teacher.scores(side).logits(), logits, atol=1e-5, rtol=0)
    _randomize(actor, scale=0.5)
    same = torch.allclose(actor.teacher.scores(side).logits(), actor.student.scores(side).logits(), atol=1e-3)
    assert same == (kind == "live")


def test_a_start_adapter_trains_whatever_it_says_of_inference(lora_config, mini_batch, start_folder):
    said = json.loads((Path(start_folder) / "adapter_config.json").read_text())
    assert said["inference_mode"]
    lora_config.actor_rollout_ref.model.lora_adapter_path = start_folder
    actor = _actor(lora_config)
    file = load_file(f"{start_folder}/adapter_model.safetensors")
    assert all(torch.equal(file[name], value) for name, value in _adapter(actor).items())
    _update(actor, mini_batch)
    assert not any(torch.equal(file[name], value) for name, value in _adapter(actor).items())


def test_the_folder_of_a_start_adapter_is_read_once(lora_config, mini_batch, start_folder, tmp_path):
    lora_config.actor_rollout_ref.model.lora_adapter_path = start_folder
    lora_config.actor_rollout_ref.rollout.lora = "adapter"
    actor = _actor(lora_config)
    Path(start_folder).rename(tmp_path / "elsewhere")
    _update(actor, mini_batch)
    sent = load_file(Path(actor.publish(str(tmp_path / "sent"))) / "000000.safetensors")
    assert all(torch.equal(sent[name], value) for name, value in _adapter(actor).items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_have_their_dtypes_whatever_they_come_from(
    lora_config, mini_batch, start_folder, dtype, no_process_group
):
    path = Path(start_folder) / "adapter_model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)
    lora_config.actor_rollout_ref.model.lora_adapter_path = start_folder
    lora_config.actor_rollout_ref.actor.fsdp_config.param_dtype = "bfloat16"
    actor = _actor(lora_config)
    for name, p in actor.student.named_parameters():
        assert p.dtype == (torch.float32 if of_adapter(name) else torch.bfloat16), name
    before = {name: local(p).clone() for name, p in actor.student.named_parameters()}
    _update(actor, mini_batch)
    for name, p in actor.student.named_parameters():
        assert torch.equal(before[name], local(p)) != of_adapter(name), name


def test_the_teacher_is_one_that_averages_merged_weights(lora_config, mini_batch):
    """A second model, as full training has it, beside the run; both see the reprompts of the last step."""
    actor, rate = _actor(lora_config, "ema"), 0.05
    lora_config.actor_rollout_ref.actor.self_distillation.teacher_update_rate = rate
    lora_config.actor_rollout_ref.model.lora_rank = 0
    model = _actor(lora_config, "live").student  # without adapters
    start = {name: tensor.clone() for name, tensor in dict(WeightSource(model.lm)).items()}
    for _ in range(20):
        report = _update(actor, mini_batch)
        full = dict(model.lm.named_parameters())
        with torch.no_grad():
            for name, tensor in dict(WeightSource(actor.student.lm)).items():
                full[name].lerp_(tensor, rate)
    off = size = 0.0
    for name, layer in adapted(actor.student.lm).items():
        update = full[f"{name}.weight"].detach() - start[f"{name}.weight"]
        off += float((product(layer, TEACHER) - update).square().sum())
        size += float(update.square().sum())
    assert size > 1e-3 and (off / size) ** 0.5 < 0.005
    assert report.metrics["sdpo/teacher_cut_off_share"] < 0.005
    side = pack_micro_batch(MicroBatchRows(mini_batch.rows)).teacher
    expected = model.scores(side).logits().log_softmax(-1)
    torch.testing.assert_close(actor.teacher.scores(side).logits().log_softmax(-1), expected, atol=5e-3, rtol=0)


def test_what_is_published_is_the_sum_rounded_once(lora_config, mini_batch):
    actor = _actor(lora_config)
    _randomize(actor)
    for layer in adapted(actor.student.lm).values():
        torch.testing.assert_close(
            product(layer, STUDENT), 2.0 * layer.lora_B[STUDENT].weight @ layer.lora_A[STUDENT].weight
        )
    exact, rounded = (dict(WeightSource(actor.student.lm, dtype)) for dtype in (torch.float32, torch.bfloat16))
    names = load_file(Path(lora_config.actor_rollout_ref.model.path) / "model.safetensors").keys()
    assert exact.keys() == names
    assert all(torch.equal(rounded[name], value.bfloat16()) for name, value in exact.items())


def _run_ranks(programs, folder: Path, world: int, config: Config, *batches: list[MiniBatch]):
    folder.mkdir(exist_ok=True)
    torch.save((config, batches), folder / "input.pt")
    script = Path(__file__).with_name("adapter_rank.py")
    ranks = [programs.start(script, folder, rank, world) for rank in range(world)]
    assert [rank.finish().returncode for rank in ranks] == [0] * world
    return torch.load(folder / "result.pt", weights_only=False)


def test_two_ranks_take_the_steps_of_one(programs, lora_config, mini_batch, tmp_path):
    lora_config.actor_rollout_ref.model.lora_rank = 1  # fewer rows of A than ranks
    lora_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 2
    single = _actor(lora_config)
    initial = _adapter(single)
    _update(single, mini_batch, mini_batch)
    expected = _update(single, mini_batch)
    start, report, student, teacher, weights = _run_ranks(
        programs, tmp_path, 2, lora_config, [mini_batch, mini_batch], [mini_batch]
    )
    assert all(torch.equal(start[name], value) for name, value in initial.items())
    for name in ("actor/loss", "actor/grad_norm", "sdpo/divergence"):
        assert report.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-5), name
    for name, value in _adapter(single).items():
        torch.testing.assert_close(student[name], value, atol=2e-5, rtol=0)
    for layer, found in zip(adapted(single.student.lm).values(), teacher, strict=True):
        torch.testing.assert_close(found, product(layer, TEACHER), atol=2e-6, rtol=0)
    for name, value in dict(WeightSource(single.student.lm)).items():
        torch.testing.assert_close(weights[name], value, atol=2e-5, rtol=0)
    exported = load_file(tmp_path / "model_best/adapter_model.safetensors")
    assert exported.keys() == student.keys()
    assert all(torch.equal(tensor, student[name]) for name, tensor in exported.items())
    resharded = _actor(lora_config)  # what two ranks saved, one rank reads
    resharded.load(str(tmp_path / "actor"))
    assert all(torch.equal(value, student[name]) for name, value in _adapter(resharded).items())
