from __future__ import annotations

import pytest

from sdpo.errors import ConfigError
from sdpo.rollout.engine import SamplingSpec, request_seed


@pytest.mark.parametrize(
    "setting", [{"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -2}, {"max_tokens": 0}]
)
def test_an_impossible_sampling_setting_is_refused_and_named(setting):
    with pytest.raises(ConfigError, match=f"rollout.{next(iter(setting))}"):
        SamplingSpec(**setting)


def test_seeds_differ_between_steps_prompts_and_samples_and_repeat_for_the_same():
    keys = [
        (base, step, uid, index)
        for base in (0, 1)
        for step in (0, 1, 11)
        for uid in ("1", "11")
        for index in (0, 1, 11)
    ]
    seeds = [request_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert seeds == [request_seed(*key) for key in keys]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_on_every_machine_and_python():
    assert request_seed(0, 12, "train-7", 3) == 2978458684933642187
