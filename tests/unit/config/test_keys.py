"""Keys of verl: renamed ones, and those with nothing to set."""

from __future__ import annotations

import pytest

from sdpo.config import fields, keys, limits
from sdpo.config.compose import compose
from sdpo.errors import ConfigError


def test_every_new_name_exists_and_no_old_or_settled_one_does():
    assert all(keys.exists(new) for new in keys.RENAMED.values())
    gone = {*keys.RENAMED, *keys.SETTLED}
    assert not [key for key in gone if keys.exists(key) or keys.is_section(key)]


def test_every_key_has_a_type_and_a_description():
    assert not [f.key for f in fields.sections_and_fields() if not (f.type and f.meaning)]


def test_limits_are_for_keys_that_exist_and_hold_for_the_defaults():
    for key in limits.limited_keys():
        assert limits.allowed(key)
        assert limits.holds(key, fields.by_key()[key].default), key


def test_settled_values_are_accepted_in_silence(caplog):
    config = compose(
        [
            "data.truncation=error",
            "actor_rollout_ref.rollout.mode=async",
            "actor_rollout_ref.model.use_remove_padding=True",
            "+trainer.critic_warmup=0",
            "algorithm.gamma=1.0",
            "reward_model.enable=False",
        ]
    )
    assert config == compose([])
    assert not caplog.records


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.truncation=left", "data.truncation: got 'left'; allowed: \"error\"; prompts are never cut"),
        ("algorithm.gamma=0.9", "algorithm.gamma: got 0.9; allowed: 1; outcome rewards have no discount"),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size: got 2; allowed: 1; sequences are not split",
        ),
        ("reward_model.enable=True", "reward_model.enable: got True; allowed: false | null; rewards come from graders"),
        (
            "actor_rollout_ref.actor.ppo_micro_batch_size=4",
            "actor_rollout_ref.actor.ppo_micro_batch_size: got 4; allow",
        ),
    ],
)
def test_a_settled_key_refuses_what_is_not_done(override, message):
    with pytest.raises(ConfigError) as error:
        compose([override])
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "override", ["critic.optim.lr=1", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"]
)
def test_a_key_without_effect_warns_and_says_why(override, caplog):
    compose([override])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith(f"{override.split('=')[0]} has no effect: ")


@pytest.mark.parametrize(("old", "new"), keys.RENAMED.items())
def test_every_renamed_key_is_known_by_its_old_name(old, new, caplog):
    assert keys.current_name(old) == new
    assert new in caplog.text
