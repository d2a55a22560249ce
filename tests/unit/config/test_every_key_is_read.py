"""A setting that nothing reads would be a promise that is not kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sdpo
from sdpo.config import fields, limits

ROOT = Path(sdpo.__file__).parent
SOURCE = "\n".join(p.read_text(encoding="utf-8") for p in ROOT.rglob("*.py") if p.parent.name != "config")
# Read in sdpo/config alone: what they may be is settled there, or they serve other settings.
IN_CONFIG = {
    "actor_rollout_ref.actor.use_kl_loss",
    "algorithm.use_kl_in_reward",
    "vars",
}


def is_read(key: str) -> bool:
    """By its last part; by the whole name where another section has a key of the same name."""
    name = r"custom_reward_function" if key.startswith("custom_reward_function.") else key.rpartition(".")[2]
    return re.search(rf"\.{name}\b(?!=)|[\"']{name}[\"']", SOURCE) is not None


def has_one_value(key: str) -> bool:
    return len(limits.CHOICES.get(key, ())) == 1


@pytest.mark.parametrize("key", fields.by_key())
def test_a_key_is_read(key):
    if key in IN_CONFIG or has_one_value(key):
        return
    assert is_read(key), f"{key}: nothing reads it and validate accepts it"
