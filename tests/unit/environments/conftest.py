"""Policies on a script: whole turns in the words of a ChatML model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sdpo.environments.episode import Policy
from sdpo.records import Prompt
from sdpo.rollout.engine import SamplingSpec
from sdpo.rollout.scripted import ScriptedEngine
from sdpo.tokens.chat import ChatRenderer


@pytest.fixture(scope="session")
def chat(chatml_tokenizer) -> ChatRenderer:
    return ChatRenderer(chatml_tokenizer)


@pytest.fixture
def policy_of(chat) -> Callable[..., Policy]:
    """The policy whose turns are these texts (or ids), for a prompt with `tools`; `.engine` is the script's."""

    def make(turns: Sequence[str | list[int]], tools=None, max_tokens: int = 1000, **engine) -> Policy:
        prompt = Prompt("p", ({"role": "user", "content": "2+2?"},), "exact", "4", tools=tools)
        written = [chat.tokenizer.encode(t, add_special_tokens=False) if isinstance(t, str) else t for t in turns]
        names = ["p/0", *(f"p/0/{turn}" for turn in range(1, len(turns)))]
        script = ScriptedEngine(dict(zip(names, written, strict=True)), [chat.tokenizer.eos_token_id], **engine)
        policy = Policy(
            "p/0",
            prompt,
            chat.student_ids(prompt),
            script,
            chat,
            lambda turn, room: SamplingSpec(max_tokens=room, seed=turn),
            lambda ids: chat.decode(ids),
            max_tokens,
            retries=2,
        )
        policy.engine = script
        return policy

    return make
