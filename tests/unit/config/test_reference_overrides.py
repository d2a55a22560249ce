"""Command lines of people who come from the reference implementation keep their meaning."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sdpo.config import fields, keys
from sdpo.config.compose import compose
from sdpo.config.validate import validate

LINES = [
    tuple(line.split(": ", 1))
    for line in Path(__file__).with_name("reference_overrides.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
DISTILL = "actor_rollout_ref.actor.self_distillation"


def given(text: str):
    """The value a person means; YAML 1.1 takes 1e-6 for text."""
    try:
        return float(text)
    except ValueError:
        return yaml.safe_load(text)


@pytest.mark.parametrize(("root", "overrides"), LINES)
def test_every_override_of_a_line_is_the_resolved_value_and_the_line_can_run(root, overrides):
    config = compose(overrides.split(), root)
    validate(config)
    for pair in overrides.split():
        key, text = pair.split("=", 1)
        assert fields.get(config, keys.RENAMED.get(key, key)) == given(text), pair


@pytest.mark.parametrize(("root", "overrides"), [line for line in LINES if "model.path" in line[1]])
def test_what_a_line_leaves_open_is_the_reference_setting_not_the_embedded_models(root, overrides):
    config = compose(overrides.split(), root)
    data, actor, rollout = config.data, config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (data.max_prompt_length, data.max_response_length) == (2048, 8192)
    assert data.apply_chat_template_kwargs == {"enable_thinking": False}
    assert (config.trainer.total_epochs, config.trainer.total_training_steps) == (30, None)
    assert actor.policy_loss.loss_mode == ("sdpo" if root == "sdpo" else "vanilla")
    assert (actor.clip_ratio_high, config.algorithm.norm_adv_by_std_in_grpo) == (0.28, False)
    assert config.algorithm.rollout_correction.rollout_is_threshold == 2.0
    assert (rollout.val_kwargs.temperature, rollout.val_kwargs.top_p, rollout.temperature) == (0.6, 0.95, 1.0)
    if root == "sdpo":
        distill = actor.self_distillation
        assert (distill.full_logit_distillation, distill.distillation_add_tail, distill.is_clip) == (True, True, 2.0)
        assert (distill.max_reprompt_len, distill.environment_feedback_only_without_solution) == (10240, True)


def test_the_old_name_of_the_teacher_rate_is_accepted_with_a_warning_that_names_the_new_one(caplog):
    config = compose([f"{DISTILL}.ema_update_rate=0.01"])
    assert config.actor_rollout_ref.actor.self_distillation.teacher_update_rate == 0.01
    (record,) = caplog.records
    assert record.levelname == "WARNING" and f"{DISTILL}.teacher_update_rate" in record.getMessage()


def test_a_fixed_micro_batch_size_is_used_without_a_second_switch():
    actor = compose(["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]).actor_rollout_ref.actor
    assert not actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu == 1


def test_epochs_on_the_command_line_win_over_the_embedded_runs_steps():
    assert compose([]).trainer.total_training_steps == 40
    trainer = compose(["trainer.total_epochs=30"]).trainer
    assert (trainer.total_epochs, trainer.total_training_steps) == (30, None)
    both = compose(["trainer.total_epochs=30", "trainer.total_training_steps=7"]).trainer
    assert both.total_training_steps == 7
