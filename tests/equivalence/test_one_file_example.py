"""The example is the specification: the framework's training step and the example's are the same step."""

from __future__ import annotations

import copy

import pytest
import torch

from sdpo.config.schema import Config
from sdpo.records import MiniBatch, TrainRow
from sdpo.workers.actor import Actor, split_over_ranks

LEARNING_RATE, EPSILON = 1e-2, 1e-2  # a large epsilon: Adam's sign of a rounding error is not what is compared


def framework_config(model: str, settings) -> Config:
    config = Config()
    actor, distillation = config.actor_rollout_ref.actor, config.actor_rollout_ref.actor.self_distillation
    config.actor_rollout_ref.model.path = model
    config.actor_rollout_ref.rollout.temperature = settings.temperature
    config.data.max_response_length = 9
    actor.optim.lr, actor.optim.eps, actor.optim.clip_grad = LEARNING_RATE, EPSILON, settings.clip_grad
    actor.optim.warmup_style, actor.optim.lr_warmup_steps = "constant", 0
    actor.loss_agg_mode = "token-mean"
    distillation.alpha, distillation.distillation_topk = settings.alpha, settings.topk
    distillation.is_clip, distillation.teacher_update_rate = settings.is_clip, settings.ema
    config.algorithm.rollout_correction.rollout_is = "token"
    config.algorithm.rollout_correction.rollout_is_threshold = settings.is_clip
    return config


def example_step(example, model: str, rows, settings, steps: int):
    """Loss, gradient norm, gradients, student and teacher after `steps` steps of the one-file example."""
    from transformers import AutoModelForCausalLM

    student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    teacher = copy.deepcopy(student).eval().requires_grad_(False)
    optim = Config().actor_rollout_ref.actor.optim
    optimizer = torch.optim.AdamW(
        student.parameters(), lr=LEARNING_RATE, eps=EPSILON, betas=tuple(optim.betas), weight_decay=optim.weight_decay
    )
    mine = [example.Row(prompt, teacher, response, None, sampler) for prompt, teacher, response, sampler in rows]
    results = [example.training_step(student, teacher, optimizer, mine, settings) for _ in range(steps)]
    return results, student, teacher


def framework_step(model: str, rows, settings, steps: int):
    """Loss and gradient norm of each step, the actor after them, and the gradients of the last step by name."""
    config = framework_config(model, settings)
    actor = Actor(config, rank=0, world_size=1, device="cpu", total_steps=10)
    gradients: dict[str, torch.Tensor] = {}

    def keep(*_) -> None:  # the actor frees them after the step
        gradients.update((name, p.grad.clone()) for name, p in actor.student.lm.named_parameters())

    actor.optimizer.register_step_pre_hook(keep)
    batch = MiniBatch(
        [
            TrainRow.single_turn(f"p{i}", 0, prompt, response, teacher_prompt_ids=teacher, sampler_logprobs=sampler)
            for i, (prompt, teacher, response, sampler) in enumerate(rows)
        ]
    )
    reports = [
        actor.update(split_over_ranks([batch], config.actor_rollout_ref.actor, 1)[0]).metrics for _ in range(steps)
    ]
    return [(report["actor/loss"], report["actor/grad_norm"]) for report in reports], actor, gradients


SETTINGS = {
    "Jensen-Shannon": {},
    "forward KL": {"alpha": 0.0},
    "reverse KL, warm": {"alpha": 1.0, "temperature": 1.4},
    "top-k with tail": {"topk": 6},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_two_steps_of_the_framework_are_two_steps_of_the_example(example, random_model, random_rows, name):
    settings = example.Settings(**SETTINGS[name])
    wanted, student, teacher = example_step(example, random_model, random_rows, settings, steps=2)
    found, actor, _ = framework_step(random_model, random_rows, settings, steps=2)
    for (loss, norm), (wanted_loss, wanted_norm) in zip(found, wanted, strict=True):
        assert loss == pytest.approx(wanted_loss, abs=1e-6)
        assert norm == pytest.approx(wanted_norm, rel=1e-5)
    assert norm > 1e-3  # something was learnt
    for mine, theirs in ((student, actor.student.lm), (teacher, actor.teacher.module.lm)):
        other = dict(theirs.named_parameters())
        for key, value in mine.named_parameters():
            torch.testing.assert_close(other[key].detach(), value.detach(), rtol=0, atol=1e-6, msg=key)


def test_gradients_of_every_weight_agree(example, random_model, random_rows, monkeypatch):
    settings = example.Settings(clip_grad=1e9)
    _, student, _ = example_step(example, random_model, random_rows, settings, steps=1)
    _, _, found = framework_step(random_model, random_rows, settings, steps=1)
    for name, value in student.named_parameters():
        assert value.grad.abs().max() > 0, name
        torch.testing.assert_close(found[name], value.grad, rtol=0, atol=1e-6)


def test_the_teacher_moves_by_its_rate_once_per_step_and_never_by_a_gradient(example, random_model, random_rows):
    settings = example.Settings()
    from transformers import AutoModelForCausalLM

    start = AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.float32).state_dict()
    _, student, teacher = example_step(example, random_model, random_rows, settings, steps=1)
    for name, value in teacher.named_parameters():
        assert value.grad is None
        expected = 0.95 * start[name] + 0.05 * dict(student.named_parameters())[name].detach()
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)


def test_a_step_with_a_gradient_that_is_not_finite_moves_neither_student_nor_teacher(
    example, random_model, random_rows
):
    settings = example.Settings()
    prompt, teacher_prompt, response, _ = random_rows[0]
    broken = [(prompt, teacher_prompt, response, [float("nan")] * len(response))]
    from transformers import AutoModelForCausalLM

    start = AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.float32).state_dict()
    _, student, teacher = example_step(example, random_model, broken, settings, steps=1)
    for model in (student, teacher):
        assert all(torch.equal(value, start[name]) for name, value in model.named_parameters())


@pytest.mark.parametrize("rate, steps, expected", [(0.05, 1, 0.05), (0.05, 10, 0.401263)])
def test_the_average_moves_toward_the_student(example, rate, steps, expected):
    teacher, student = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(teacher.weight)
    torch.nn.init.ones_(student.weight)
    for _ in range(steps):
        example.follow(teacher, student, rate)
    assert teacher.weight.item() == pytest.approx(expected, abs=1e-5)
