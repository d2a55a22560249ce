"""`optimizer_offload` is verl's key with verl's meaning; beside `offload_policy`, which says more, it is refused."""

from __future__ import annotations

import pytest

from sdpo.config.compose import compose
from sdpo.config.validate import validate
from sdpo.errors import ConfigError

FSDP = "actor_rollout_ref.actor.fsdp_config"


@pytest.mark.parametrize("settings", [{"optimizer_offload": True}, {"offload_policy": True}])
def test_one_of_the_two_can_be_set(settings, caplog):
    config = compose([f"{FSDP}.{name}={value}" for name, value in settings.items()])
    validate(config)
    fsdp = config.actor_rollout_ref.actor.fsdp_config
    assert {name: getattr(fsdp, name) for name in ("optimizer_offload", "offload_policy")} == (
        {"optimizer_offload": False, "offload_policy": False} | settings
    )
    assert not caplog.records


def test_both_are_refused_with_the_way_out():
    with pytest.raises(ConfigError) as caught:
        validate(compose([f"{FSDP}.optimizer_offload=true", f"{FSDP}.offload_policy=true"]))
    assert str(caught.value) == (
        f"{FSDP}.optimizer_offload: got True; allowed: false with offload_policy=true; "
        "the optimizer is in CPU memory then, and steps there: set one of the two to false"
    )
