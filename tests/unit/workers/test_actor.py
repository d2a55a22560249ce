"""One optimizer step: the same for any micro-batch size and ranks, safe against bad gradients, exact on resume."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sdpo.config.schema import Config
from sdpo.errors import CheckpointError
from sdpo.models.forward import PolicyModule
from sdpo.records import Distillation, MiniBatch, PolicyGradient, TrainRow
from sdpo.tokens.packing import pack_micro_batch
from sdpo.tokens.partition import MicroBatchRows, side_tokens
from sdpo.weights import shared_memory
from sdpo.weights.source import WeightSource
from sdpo.workers.actor import Actor, split_over_ranks


def _actor(config: Config) -> Actor:
    return Actor(config, 0, 1, "cpu", total_steps=10)


def _update(actor: Actor, *batches: MiniBatch):
    return actor.update(split_over_ranks(list(batches), actor.config.actor_rollout_ref.actor, 1)[0])


def _weights(actor: Actor) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in dict(WeightSource(actor.student.lm)).items()}


@pytest.mark.parametrize("mode", ["sdpo", "vanilla"])
@pytest.mark.parametrize("agg", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"])
def test_the_step_does_not_depend_on_the_micro_batch_size(actor_config, mini_batch, mode, agg):
    actor_config.actor_rollout_ref.actor.loss_agg_mode = agg
    _use_algorithm(actor_config, mini_batch, mode)
    reports, weights = [], []
    for rows_each in (1, 3, None):
        actor_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = rows_each
        actor = _actor(actor_config)
        reports.append(_update(actor, mini_batch).metrics)
        weights.append(_weights(actor))
    for report, state in zip(reports[1:], weights[1:], strict=True):
        for key in ("actor/loss", "actor/grad_norm", "actor/entropy"):
            assert report[key] == pytest.approx(reports[0][key], rel=1e-5), key
        for name in state:
            torch.testing.assert_close(state[name], weights[0][name], atol=2e-5, rtol=0)


@pytest.mark.parametrize("mode", ["sdpo", "vanilla"])
@pytest.mark.parametrize("rows_each", [2, None])
def test_reading_what_rows_begin_with_once_changes_nothing(actor_config, mini_batch, mode, rows_each):
    actor_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = rows_each
    _use_algorithm(actor_config, mini_batch, mode)
    reports, weights, tokens = [], [], []
    for padded in (False, True):
        actor = _actor(actor_config)
        if padded:
            actor.student.prefix_sharing_unsupported = "to compare"
        read = _count_tokens(actor.student)
        reports.append(_update(actor, mini_batch).metrics)
        weights.append(_weights(actor))
        tokens.append(sum(read))
    assert tokens[0] < 0.9 * tokens[1]
    for key in ("actor/loss", "actor/grad_norm", "actor/entropy"):
        assert reports[0][key] == pytest.approx(reports[1][key], rel=1e-5), key
    for name, value in weights[1].items():
        torch.testing.assert_close(weights[0][name], value, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mode", ["sdpo", "vanilla"])
def test_the_head_may_take_its_gradient_in_place(actor_config, mini_batch, mode, monkeypatch):
    actor_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 3
    _use_algorithm(actor_config, mini_batch, mode)
    reports, weights = [], []
    for in_place in (True, False):
        if not in_place:
            monkeypatch.setattr(PolicyModule, "_head_gradient", lambda *_: None)
        actor = _actor(actor_config)
        reports.append(_update(actor, mini_batch, mini_batch).metrics)
        weights.append(_weights(actor))
    assert reports[0]["actor/grad_norm"] == pytest.approx(reports[1]["actor/grad_norm"], rel=1e-6)
    for name, value in weights[1].items():
        torch.testing.assert_close(weights[0][name], value, atol=1e-6, rtol=0)


def test_only_an_ordinary_float32_head_takes_its_gradient_in_place(actor_config, mini_batch):
    student = _actor(actor_config).student
    head, side = student.lm.get_output_embeddings(), pack_micro_batch(MicroBatchRows(mini_batch.rows[:1])).student
    assert student.scores(side).weight_gradient is None
    assert student.scores(side, in_place=True).weight_gradient is head.weight.grad
    head.weight.grad = None
    head.weight.requires_grad_(False)
    assert student.scores(side, in_place=True).weight_gradient is None
    student.bfloat16().requires_grad_(True)
    assert student.scores(side, in_place=True).weight_gradient is None
    assert head.weight.grad is None


@pytest.mark.parametrize("mode", ["sdpo", "vanilla"])
def test_one_optimizer_step_reads_every_distinct_beginning_once_on_each_side(actor_config, mini_batch, mode):
    """No pass for old log-probs, no teacher pass for GRPO, no padding, no prompt twice."""
    _use_algorithm(actor_config, mini_batch, mode)
    actor = _actor(actor_config)
    student = _count_tokens(actor.student)
    teacher = _count_tokens(actor.teacher.module) if actor.teacher else []
    _update(actor, mini_batch)
    expected = side_tokens(mini_batch.rows)
    assert (student, teacher) == ([expected[0]], [expected[1]] if mode == "sdpo" else [])


PROMPT, TURNS, TOOL = [3, 4], ([7, 8, 9], [10, 11]), [5, 6]
FIRST, SECOND = (2, 5), (7, 9)  # of the policy, in prompt + first turn + tool result + second turn


@pytest.mark.parametrize("kind", ["policy_gradient", "distillation"])
def test_a_row_of_two_turns_has_the_gradient_of_the_turns_as_rows_of_their_own(actor_config, kind):
    """Same contexts, so nothing but the form differs; the tool result between the turns is in neither loss."""
    actor_config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla" if kind == "policy_gradient" else "sdpo"
    history = [*PROMPT, *TURNS[0], *TOOL]
    both = TrainRow("p", 0, [*history, *TURNS[1]], (FIRST, SECOND), [-2.0] * 5)
    apart = [
        TrainRow.single_turn("p", 0, PROMPT, TURNS[0], sampler_logprobs=[-2.0] * 3),
        TrainRow.single_turn("p", 1, history, TURNS[1], sampler_logprobs=[-2.0] * 2),
    ]
    if kind == "policy_gradient":
        both.policy_gradient = PolicyGradient([0.5] * 3 + [-1.5] * 2)
        apart[0].policy_gradient, apart[1].policy_gradient = PolicyGradient(0.5), PolicyGradient(-1.5)
    else:
        hints = [12, 13], [14, *PROMPT, 15]
        both.distillation = Distillation(FIRST, hints[0]), Distillation(SECOND, hints[1])
        for row, hint in zip(apart, hints, strict=True):
            row.distillation = (Distillation(row.spans[0], hint),)
    reports, weights = [], []
    for rows in ([both], apart):
        actor = _actor(actor_config)
        reports.append(_update(actor, MiniBatch(rows)).metrics)
        weights.append(_weights(actor))
    assert reports[0]["actor/grad_norm"] > 1e-3
    for name in ("actor/loss", "actor/grad_norm", "actor/entropy"):
        assert reports[0][name] == pytest.approx(reports[1][name], rel=1e-5), name
    for name, value in weights[1].items():
        torch.testing.assert_close(weights[0][name], value, atol=1e-5, rtol=0)


def test_a_hint_at_one_turn_costs_the_teacher_the_hint_and_that_turn(actor_config):
    """What it has read up to the turn is shared with the other hint of the row; the turns between cost nothing."""
    history = [*PROMPT, *TURNS[0], *TOOL]
    row = TrainRow("p", 0, [*history, *TURNS[1]], (FIRST, SECOND), [-2.0] * 5)
    row.distillation = Distillation(SECOND, [*history, 12, 13]), Distillation(SECOND, [*history, 14])
    actor = _actor(actor_config)
    student, teacher = _count_tokens(actor.student), _count_tokens(actor.teacher.module)
    _update(actor, MiniBatch([row]))
    assert student == [len(history) + 2]
    assert teacher == [len(history) + (2 + 2) + (1 + 2)]


def test_a_component_of_weight_zero_costs_no_pass_and_stays_in_the_denominator(actor_config, mini_batch):
    rows = mini_batch.rows
    for row in rows[3:]:
        row.distillation = (replace(row.distillation[0], weight=0.0),)
    actor = _actor(actor_config)
    read = _count_tokens(actor.student)
    loss = _update(actor, mini_batch).metrics["actor/loss"]
    assert read == [side_tokens(rows[:3])[0]]
    alone = _update(_actor(actor_config), MiniBatch(rows[:3])).metrics["actor/loss"]
    tokens = [MiniBatch(part).denominators()["distillation"].tokens for part in (rows[:3], rows)]
    assert loss == pytest.approx(alone * tokens[0] / tokens[1], rel=1e-5)


def test_old_log_probs_cost_a_pass_only_when_the_policy_moves_in_between(actor_config, mini_batch):
    halves = [MiniBatch(mini_batch.rows[:3]), MiniBatch(mini_batch.rows[3:])]
    actor = _actor(actor_config)
    read = _count_tokens(actor.student)
    _update(actor, *halves)
    assert len(read) == 4  # two steps, two passes before them
    actor_config.actor_rollout_ref.actor.self_distillation.is_clip = None
    actor_config.algorithm.rollout_correction.rollout_is = None
    actor = _actor(actor_config)
    read = _count_tokens(actor.student)
    _update(actor, *halves)
    assert len(read) == 2  # nothing asks for them


def _use_algorithm(config: Config, batch: MiniBatch, mode: str) -> None:
    config.actor_rollout_ref.actor.policy_loss.loss_mode = mode
    if mode == "vanilla":
        for i, row in enumerate(batch.rows):
            row.policy_gradient, row.distillation = PolicyGradient((-1.0) ** i * 0.5), ()


def _count_tokens(module: PolicyModule) -> list[int]:
    """Grows by the number of tokens of every forward pass."""
    counts: list[int] = []
    module.lm.get_input_embeddings().register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].numel()))
    return counts


def test_equal_weights_and_equal_contexts_give_no_loss_and_no_gradient(actor_config, mini_batch):
    for row in mini_batch.rows:
        row.distillation = (Distillation(row.spans[0], row.token_ids[: row.spans[0][0]]),)
    metrics = _update(_actor(actor_config), mini_batch).metrics
    assert abs(metrics["actor/loss"]) < 1e-6 and metrics["actor/grad_norm"] < 1e-5


def test_different_contexts_give_a_gradient_and_none_to_the_teacher(actor_config, mini_batch):
    actor = _actor(actor_config)
    metrics = _update(actor, mini_batch).metrics
    assert metrics["actor/loss"] > 1e-5 and metrics["actor/grad_norm"] > 1e-4
    assert all(p.grad is None for p in actor.teacher.module.parameters())
    assert actor.student.training


def test_the_teacher_moves_once_whatever_the_accumulation(actor_config, mini_batch):
    actor_config.actor_rollout_ref.actor.optim.lr = 0.0
    actor_config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 2  # four micro-batches
    actor = _actor(actor_config)
    with torch.no_grad():
        for p in actor.teacher.module.parameters():
            p.zero_()
    student = _weights(actor)
    _update(actor, mini_batch)
    for name, value in dict(WeightSource(actor.teacher.module.lm)).items():
        torch.testing.assert_close(value, 0.05 * student[name], atol=1e-7, rtol=1e-6)


def test_a_gradient_that_is_not_finite_moves_neither_student_nor_teacher(actor_config, mini_batch, monkeypatch):
    actor = _actor(actor_config)
    real = actor.student.scores

    def poisoned(*arguments, **options):
        scores = real(*arguments, **options)
        return replace(scores, hidden=scores.hidden * math.nan)

    monkeypatch.setattr(actor.student, "scores", poisoned)
    before, teacher = _weights(actor), copy.deepcopy(dict(WeightSource(actor.teacher.module.lm)))
    report = _update(actor, mini_batch)
    assert (report.skipped_steps, report.optimizer_steps, report.policy_version) == (1, 0, 0)
    assert all(torch.equal(before[k], v) for k, v in dict(WeightSource(actor.student.lm)).items())
    assert all(torch.equal(teacher[k], v) for k, v in dict(WeightSource(actor.teacher.module.lm)).items())
    monkeypatch.undo()
    assert _update(actor, mini_batch).optimizer_steps == 1


def test_several_optimizer_steps_use_the_policy_at_the_start_as_old_policy(actor_config, mini_batch):
    halves = [MiniBatch(mini_batch.rows[:3]), MiniBatch(mini_batch.rows[3:])]
    report = _update(_actor(actor_config), *halves)
    assert report.optimizer_steps == 2 and report.policy_version == 2
    assert all(math.isfinite(v) for v in report.metrics.values())


def test_resume_continues_bit_for_bit(actor_config, mini_batch, tmp_path):
    actor_config.actor_rollout_ref.actor.optim.lr_warmup_steps = 3
    straight = _actor(actor_config)
    for _ in range(2):
        _update(straight, mini_batch)
    straight.save(str(tmp_path / "actor"))
    for _ in range(2):
        _update(straight, mini_batch)
    resumed = _actor(actor_config)
    resumed.load(str(tmp_path / "actor"))
    assert resumed.policy_version == 2
    for _ in range(2):
        _update(resumed, mini_batch)
    assert resumed.policy_version == straight.policy_version == 4
    assert resumed.schedule.batches == straight.schedule.batches == 4
    for part in ("student", "teacher"):
        a, b = (x.student if part == "student" else x.teacher.module for x in (straight, resumed))
        for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
            assert torch.equal(p, q), f"{part} {name}"


def test_a_damaged_or_foreign_checkpoint_is_a_checkpoint_error(actor_config, tmp_path):
    with pytest.raises(CheckpointError):
        _actor(actor_config).load(str(tmp_path / "nothing"))
    actor_config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    _actor(actor_config).save(str(tmp_path / "grpo"))
    actor_config.actor_rollout_ref.actor.policy_loss.loss_mode = "sdpo"
    with pytest.raises(CheckpointError, match="teacher"):
        _actor(actor_config).load(str(tmp_path / "grpo"))
    index = tmp_path / "grpo" / ".metadata"
    whole = index.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\0" * 100, b"cos\nsystem_that_is_not_there\n."):
        index.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="index"):
            _actor(actor_config).load(str(tmp_path / "grpo"))
    index.write_bytes(whole)
    for shard in (tmp_path / "grpo").glob("*.distcp"):
        shard.write_bytes(b"")
    actor_config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    with pytest.raises(CheckpointError):
        _actor(actor_config).load(str(tmp_path / "grpo"))


def test_the_exported_folder_is_the_student_for_any_loader(actor_config, mini_batch, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    actor = _actor(actor_config)
    _update(actor, mini_batch)
    actor.export(str(tmp_path / "model"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = torch.tensor([[1, 5, 9]])
    torch.testing.assert_close(loaded(ids).logits, actor.student.lm(ids).logits)


def _run_ranks(programs, folder: Path, world: int, config: Config, *batches: list[MiniBatch]):
    """Every rank's updates with rollout batches of mini-batches; the last report, student and teacher."""
    torch.save((config, batches), folder / "input.pt")
    script = Path(__file__).with_name("fsdp_rank.py")
    ranks = [programs.start(script, folder, rank, world) for rank in range(world)]
    assert [rank.finish().returncode for rank in ranks] == [0] * world
    return torch.load(folder / "result.pt", weights_only=False)


@pytest.mark.parametrize(
    ("rows", "interval"),
    [(7, "batch"), (1, "optimizer_step")],  # one row: the other rank has nothing and must still join
)
def test_two_fsdp_ranks_take_the_steps_of_one(programs, actor_config, mini_batch, tmp_path, rows, interval):
    batch = MiniBatch(mini_batch.rows[:rows])
    actor = actor_config.actor_rollout_ref.actor
    actor.ppo_micro_batch_size_per_gpu, actor.optim.lr_warmup_steps = 2, 3
    actor.self_distillation.teacher_update_interval = interval
    actor_config.actor_rollout_ref.rollout.dtype = "bfloat16"  # of an engine
    single = _actor(actor_config)
    _update(single, batch, batch)
    expected = _update(single, batch)
    report, state, teacher = _run_ranks(programs, tmp_path, 2, actor_config, [batch, batch], [batch])
    assert report.policy_version == 3 and report.metrics["actor/lr"] == expected.metrics["actor/lr"] == 1e-2
    exported = load_file(tmp_path / "model_best/model.safetensors")
    assert exported and all(torch.equal(tensor, state[name]) for name, tensor in exported.items())
    (sent,) = (tmp_path / "sent").iterdir()
    arrived = {name: tensor for group in shared_memory.receive(str(sent), 3) for name, tensor in group.items()}
    assert arrived.keys() == state.keys() and "lm_head.weight" not in arrived  # tied
    assert all(torch.equal(arrived[k], v.bfloat16()) for k, v in state.items())
    for key in ("actor/loss", "actor/grad_norm", "actor/entropy", "sdpo/divergence"):
        assert report.metrics[key] == pytest.approx(expected.metrics[key], rel=1e-5), key
    for name, value in dict(WeightSource(single.student.lm)).items():
        torch.testing.assert_close(state[name], value, atol=2e-5, rtol=0)
    for name, value in dict(WeightSource(single.teacher.module.lm)).items():
        torch.testing.assert_close(teacher[name], value, atol=2e-6, rtol=0)
    resharded = _actor(actor_config)  # what two ranks saved, one rank reads
    resharded.load(str(tmp_path / "actor"))
    for name, value in dict(WeightSource(resharded.student.lm)).items():
        assert torch.equal(state[name], value), name


def test_one_rank_reads_the_bfloat16_teacher_of_two(programs, actor_config, mini_batch, tmp_path, no_process_group):
    actor = actor_config.actor_rollout_ref.actor
    actor.fsdp_config.param_dtype = actor.self_distillation.teacher_master_dtype = "bfloat16"
    _, _, rounded = _run_ranks(programs, tmp_path, 2, actor_config, [mini_batch, mini_batch])
    teacher = _actor(actor_config).teacher
    before = {name: value.full_tensor().clone() for name, value in teacher.state().items()}
    single = _actor(actor_config)
    single.load(str(tmp_path / "actor"))
    assert dict(WeightSource(single.teacher.module.lm)).keys() == rounded.keys()
    for name, value in dict(WeightSource(single.teacher.module.lm)).items():
        assert torch.equal(value, rounded[name]), name
    state = single.teacher.state()
    for name, value in rounded.items():
        assert not torch.equal(state[f"lm.{name}"].full_tensor(), before[f"lm.{name}"]), name
        assert not torch.equal(state[f"lm.{name}"].full_tensor(), value.float()), name
