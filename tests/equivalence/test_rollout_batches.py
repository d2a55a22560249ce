"""Rollout batches of several mini-batches: what moves once a mini-batch and what moves once a batch, against a loop
written out by hand."""

from __future__ import annotations

import copy
import random

import pytest
import torch

from sdpo.config.schema import OptimConfig
from sdpo.records import MiniBatch, TrainRow
from sdpo.workers.actor import Actor, split_over_ranks
from sdpo.workers.schedule import Schedule
from tests.equivalence.conftest import VOCAB
from tests.equivalence.test_one_file_example import EPSILON, LEARNING_RATE, framework_config

BATCHES, MINI_BATCHES, WARMUP = 3, 8, 4


@pytest.fixture(scope="module")
def rollout_batches() -> list[list[list[tuple]]]:
    """(prompt, teacher prompt, response, sampler log-probs) of two rows a mini-batch."""
    rng = random.Random(11)

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(3, VOCAB) for _ in range(rng.randint(low, high))]

    def row() -> tuple:
        response = ids(1, 7)
        return ids(2, 5), ids(4, 9), response, [-rng.uniform(2, 5) for _ in response]

    return [[[row(), row()] for _ in range(MINI_BATCHES)] for _ in range(BATCHES)]


def by_hand(example, model: str, batches, settings, *, interval: str = "batch", epochs: int = 1):
    """Student and teacher after `batches`, the first WARMUP of them warm-up; a mini-batch of None makes no step."""
    from transformers import AutoModelForCausalLM

    student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    peak = LEARNING_RATE / epochs  # twice the steps at half the rate: rounding adds up along the way
    optimizer = torch.optim.AdamW(student.parameters(), lr=peak, eps=EPSILON, weight_decay=0.01)
    for number, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = peak * min(1.0, (number + 1) / WARMUP)
        rows = [[example.Row(p, t, r, None, s) for p, t, r, s in mini] for mini in batch if mini]
        for row in (row for mini in rows for row in mini):
            with torch.no_grad():
                log_p = example.response_log_probs(student, row.prompt_ids, row.response_ids, settings.temperature)
            row.old_log_probs = [log_p[i, token].item() for i, token in enumerate(row.response_ids)]
        moved = False
        for mini in rows * epochs:
            optimizer.zero_grad()
            tokens = sum(len(row.response_ids) for row in mini)
            loss = sum(example.row_loss(student, teacher, row, settings) for row in mini) / tokens
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(student.parameters(), settings.clip_grad)
            if torch.isfinite(norm):
                optimizer.step()
                moved = True
                if interval == "optimizer_step":
                    follow(teacher, student, settings.ema)
        if moved and interval == "batch":
            follow(teacher, student, settings.ema)
    return student, teacher


@torch.no_grad()
def follow(teacher, student, rate: float) -> None:
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.copy_((1 - rate) * slow + rate * fast)


def make_actor(model: str, settings, *, interval: str = "batch", epochs: int = 1) -> Actor:
    config = framework_config(model, settings)
    actor = config.actor_rollout_ref.actor
    actor.optim.lr, actor.optim.lr_warmup_steps, actor.ppo_epochs = LEARNING_RATE / epochs, WARMUP, epochs
    actor.self_distillation.teacher_update_interval = interval
    return Actor(config, rank=0, world_size=1, device="cpu", total_steps=BATCHES)


def update(actor: Actor, batch):
    minis = [
        MiniBatch([TrainRow.single_turn("p", 0, p, r, teacher_prompt_ids=t, sampler_logprobs=s) for p, t, r, s in mini])
        for mini in batch
        if mini
    ]
    return actor.update(split_over_ranks(minis, actor.config.actor_rollout_ref.actor, 1)[0])


def assert_same(actor: Actor, student, teacher) -> None:
    for wanted, found in ((student, actor.student.lm), (teacher, actor.teacher.module.lm)):
        named = dict(found.named_parameters())
        for name, value in wanted.named_parameters():
            torch.testing.assert_close(named[name].detach(), value.detach(), rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("interval", ["batch", "optimizer_step"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_three_batches_of_eight_mini_batches_are_those_written_out_by_hand(
    example, random_model, rollout_batches, interval, epochs
):
    settings = example.Settings()
    student, teacher = by_hand(example, random_model, rollout_batches, settings, interval=interval, epochs=epochs)
    actor = make_actor(random_model, settings, interval=interval, epochs=epochs)
    rates = [update(actor, batch).metrics["actor/lr"] for batch in rollout_batches]
    assert_same(actor, student, teacher)
    of_the_next = [LEARNING_RATE / epochs * n / WARMUP for n in (2, 3, 4)]
    assert rates == pytest.approx(of_the_next)


def test_a_resumed_run_goes_on_between_the_same_batches(example, random_model, rollout_batches, tmp_path):
    settings = example.Settings()
    student, teacher = by_hand(example, random_model, rollout_batches, settings)
    first, second = make_actor(random_model, settings), make_actor(random_model, settings)
    update(first, rollout_batches[0])
    first.save(str(tmp_path / "actor"))
    second.load(str(tmp_path / "actor"))
    for batch in rollout_batches[1:]:
        update(second, batch)
    assert_same(second, student, teacher)


def test_empty_and_broken_mini_batches_leave_the_count_of_batches_alone(example, random_model, rollout_batches):
    """The middle batch is one without any step: neither teacher nor student move, the warm-up does."""
    settings = example.Settings()
    first, _, last = copy.deepcopy(rollout_batches)
    first[2] = first[7] = None
    last[0] = None
    prompt, teacher_prompt, response, _ = last[3][0]
    last[3][0] = (prompt, teacher_prompt, response, [float("nan")] * len(response))
    for middle in ([None] * MINI_BATCHES, [[last[3][0]]]):
        student, teacher = by_hand(example, random_model, [first, middle, last], settings)
        actor = make_actor(random_model, settings)
        reports = [update(actor, batch) for batch in (first, middle, last)]
        assert [report.optimizer_steps for report in reports] == [6, 0, 6]
        assert [report.skipped_steps for report in reports] == [0, len(middle) == 1, 1]
        assert_same(actor, student, teacher)


def test_a_trust_region_sees_the_current_student_in_every_mini_batch(example, random_model, rollout_batches):
    """As the reference does: only weights of the teacher's own wait for the end of the batch."""
    config = framework_config(random_model, example.Settings(ema=0.5))
    config.actor_rollout_ref.actor.self_distillation.teacher_regularization = "trust-region"
    actor = Actor(config, rank=0, world_size=1, device="cpu", total_steps=BATCHES)
    seen = []
    real = actor.teacher.scores

    def scores(side):
        found = real(side)
        seen.append((found.current.weight.clone(), actor.student.lm.get_output_embeddings().weight.detach().clone()))
        return found

    actor.teacher.scores = scores
    update(actor, rollout_batches[0][:3])
    assert all(torch.equal(used, current) for used, current in seen)
    assert not torch.equal(seen[0][0], seen[2][0])


@pytest.mark.parametrize("empty", [set(), {0}, {3, 4}, {9}, set(range(10))])
def test_a_cosine_ends_at_its_floor_whatever_was_empty(example, random_model, rollout_batches, tmp_path, empty):
    config = framework_config(random_model, example.Settings())
    optim = config.actor_rollout_ref.actor.optim
    optim.warmup_style, optim.lr_warmup_steps, optim.min_lr_ratio = "cosine", 2, 0.1
    actor, rates = Actor(config, rank=0, world_size=1, device="cpu", total_steps=10), []
    for number in range(10):
        rates.append(actor.optimizer.param_groups[0]["lr"])
        batch = [] if number in empty else rollout_batches[number % BATCHES][:1]
        report = update(actor, batch)
        if number == 5:  # resumed in between
            actor.save(str(tmp_path / "actor"))
            actor = Actor(config, rank=0, world_size=1, device="cpu", total_steps=10)
            actor.load(str(tmp_path / "actor"))
    assert rates[:3] == pytest.approx([LEARNING_RATE / 2, LEARNING_RATE, LEARNING_RATE])
    assert rates == pytest.approx(sorted(rates[:2]) + sorted(rates[2:], reverse=True))
    assert rates[6] == pytest.approx(LEARNING_RATE * (0.1 + 0.9 / 2))  # half way
    assert report.metrics["actor/lr"] == pytest.approx(0.1 * LEARNING_RATE)


@pytest.mark.parametrize("total", [3, 10, 500])
def test_a_cosine_of_its_own_length_does_not_hang_on_that_of_the_run(total):
    optim = OptimConfig(lr=2.0, warmup_style="cosine", lr_stable_steps=3, lr_decay_steps=4, min_lr_ratio=0.1)
    optim.lr_warmup_steps = 2
    schedule = Schedule(torch.optim.SGD([torch.zeros(1)]), optim, total)
    rates = []
    for batches in range(12):
        schedule.move_to(batches)
        rates.append(schedule.rate)
    cosine = [0.1 + 0.9 * (1 + half) / 2 for half in (1, 2**-0.5, 0, -(2**-0.5), -1)]
    assert rates == pytest.approx([1, *[2] * 4, *(2 * share for share in cosine), 0.2, 0.2])
