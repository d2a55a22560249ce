"""What the samples of a group are told alike costs one encoding, and changes no id."""

from __future__ import annotations

import pytest

from sdpo.config.schema import SelfDistillationConfig
from sdpo.reprompt.builder import RepromptBuilder
from sdpo.tokens.chat import ChatRenderer

TEXT = "The answer of the first part is 12.\n\ndef solve(a):\n    return a\nso it's the end of it, <|im_end|> said\n"


@pytest.fixture
def chat(chatml_tokenizer) -> ChatRenderer:
    return ChatRenderer(chatml_tokenizer)


def test_a_demonstration_is_encoded_once_and_every_prompt_rendered_once(chat, make_group, monkeypatch) -> None:
    encoded, rendered = [], []
    encode, apply = ChatRenderer._encode_texts, ChatRenderer._apply
    monkeypatch.setattr(ChatRenderer, "_encode_texts", lambda own, texts: encoded.extend(texts) or encode(own, texts))
    monkeypatch.setattr(ChatRenderer, "_apply", lambda own, *a, **k: rendered.append(1) or apply(own, *a, **k))
    answers = [f"{'so it is the end of the first part. ' * 100}number {i}" for i in range(8)]
    group = make_group([1, 1, 0, 0, 0, 0, 0, 0], [f"wrong {i}" for i in range(8)], answers)
    reprompts, _ = RepromptBuilder(SelfDistillationConfig(), chat).build(group)
    assert [reprompt.demonstration_index for reprompt in reprompts] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert sum(map(len, encoded)) < 3 * len(answers[0])  # two demonstrations, not eight
    assert len(rendered) == 8


def test_samples_that_are_told_the_same_share_their_ids(chat, make_group) -> None:
    group = make_group([1, 0, 0, 0], None, [TEXT, "a", "b", "c"])
    reprompts, _ = RepromptBuilder(SelfDistillationConfig(), chat).build(group)
    assert len({id(reprompt.prompt_ids) for reprompt in reprompts[1:]}) == 1


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("limit", [60, 90, 150, 220, 400])
def test_what_is_cut_to_fit_has_the_ids_of_its_prompt(chat, make_group, limit: int, side: str) -> None:
    group = make_group([1, 0, 0, 0], ["", TEXT, TEXT * 2, "short"], [TEXT * 2, "a", "b", "c"])
    settings = SelfDistillationConfig(max_reprompt_len=limit, reprompt_truncation=side)
    reprompts, _ = RepromptBuilder(settings, chat).build(group)
    for reprompt in filter(None, reprompts):
        asked = reprompt.text.removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
        assert reprompt.prompt_ids == chat.prompt_ids([{"role": "user", "content": asked}])
        assert len(reprompt.prompt_ids) <= limit
