from __future__ import annotations

import pytest

from sdpo.algorithms.grpo import Grpo
from sdpo.algorithms.registry import build_algorithm
from sdpo.algorithms.sdpo import Sdpo
from sdpo.errors import ConfigError


def test_loss_mode_picks_the_algorithm_and_a_worker_needs_no_builder(plain_config):
    config = plain_config()
    assert isinstance(build_algorithm(config, None), Sdpo)
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    algorithm = build_algorithm(config, None)
    assert isinstance(algorithm, Grpo)
    assert (algorithm.needs_teacher, Sdpo.needs_teacher) == (False, True)


def test_descriptions_name_the_variant(plain_config):
    assert "Jensen-Shannon" in build_algorithm(plain_config(), None).describe()
    config = plain_config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    for flag, words in ((True, "standard deviation"), (False, "not scaled")):
        config.algorithm.norm_adv_by_std_in_grpo = flag
        assert words in build_algorithm(config, None).describe()


def test_unknown_loss_mode_names_the_known_ones(plain_config):
    config = plain_config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "gspo"
    with pytest.raises(ConfigError, match="sdpo or vanilla"):
        build_algorithm(config, None)
