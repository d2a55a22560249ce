from __future__ import annotations

import subprocess
import sys

import pytest

from sdpo.algorithms.grpo import Grpo
from sdpo.algorithms.registry import ALGORITHMS, build_algorithm, descriptor_of
from sdpo.algorithms.sdpo import Sdpo
from sdpo.algorithms.srpo import Srpo
from sdpo.errors import ConfigError
from sdpo.records import COMPONENTS


@pytest.mark.parametrize(
    ("mode", "kind", "teacher"), [("sdpo", Sdpo, True), ("vanilla", Grpo, False), ("srpo", Srpo, True)]
)
def test_loss_mode_picks_the_algorithm_and_says_whether_there_is_a_teacher(plain_config, mode, kind, teacher):
    config = plain_config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = mode
    assert isinstance(build_algorithm(config, None), kind)
    assert descriptor_of(config).needs_teacher is teacher


@pytest.mark.parametrize("descriptor", ALGORITHMS.values(), ids=lambda descriptor: descriptor.name)
def test_a_descriptor_names_components_that_exist_and_its_own_label_in_the_description(plain_config, descriptor):
    config = plain_config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = descriptor.name
    assert set(descriptor.components) <= set(COMPONENTS)
    assert build_algorithm(config, None).describe().startswith(descriptor.label)


def test_descriptors_load_without_torch():
    code = "import sys, sdpo.algorithms.registry, sdpo.config.validate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_descriptions_name_the_variant(plain_config):
    assert "Jensen-Shannon" in build_algorithm(plain_config(), None).describe()
    config = plain_config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "vanilla"
    for flag, words in ((True, "standard deviation"), (False, "not scaled")):
        config.algorithm.norm_adv_by_std_in_grpo = flag
        assert words in build_algorithm(config, None).describe()


def test_unknown_loss_mode_names_the_known_ones(plain_config):
    config = plain_config()
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "ppo"
    with pytest.raises(ConfigError, match=r"sdpo \| vanilla \| gspo \| srpo"):
        build_algorithm(config, None)
