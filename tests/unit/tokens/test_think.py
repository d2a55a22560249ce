from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdpo.tokens import think
from sdpo.tokens.think import left_open, strip_think

MARK_PIECES = (
    "<think>", "</think>", "</thought >", "<|channel|>", "analysis", "<|message|>", "<|end|>", "<|start|>", "[THINK]",
    "[/THINK]", "◁think▷", "◁/think▷", "to=self<|message|>", "<|eom|>", "<reason>", "</reason>", "<|open|>", "think",
    "<|sep|>", "<unused94>", "<|return|>", "<|content_thinking|>", "<|end_message|>", "<|close|>",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("plan plan\n</think>\n\nANSWER", "ANSWER"),
        ("<think>plan</think>ANSWER", "ANSWER"),
        ("ANSWER with no tags", "ANSWER with no tags"),
        ("<think>plan that never ends \\boxed{4}", ""),
        ("x</think>y</think>ANSWER", "ANSWER"),
        ("<think>a</think>ANSWER<think>b</think>", "ANSWER"),
        ("<think>a<think>b</think>c</think>ANSWER", "ANSWER"),
        ("<think>a</think>maybe<think>no, \\boxed{5}", ""),
        ("\n  text without tags keeps its blanks \n", "\n  text without tags keeps its blanks \n"),
    ],
)
def test_only_the_answer_is_left(text: str, answer: str) -> None:
    assert strip_think(text) == answer


# Family: opening mark, closing mark, what may stand around the answer.
HARMONY = "<|start|>assistant<|channel|>final<|message|>{}<|return|>"
FAMILIES = {
    **{
        tag: (f"<{tag}>", f"</{tag}>", "{}")
        for tag in ("think", "thinking", "thought", "reasoning", "seed:think", "mm:think", "ifm|think", "think:61c7")
    },
    **{
        tag: (f"<{tag}>", f"</{tag}>", "{}")
        for tag in ("longcat_think", "deep-thinking", "think_fast", "inner_monologue", "chain_of_thought")
    },
    **{tag: (f"<{tag}>", f"</{tag}>", "{}") for tag in ("thought_process", "self_reflection", "Rationale", "reason")},
    "begin and end": ("<begin_of_thought>", "<end_of_thought>", "{}"),
    "upper case": ("<THINK>", "</Think>", "{}"),
    "attributes": ('<think effort="high">', "</think>", "{}"),
    "ernie": ("<think>\n", "\n</think>\n\n", "<response>\n{}\n</response>\n"),
    "mistral": ("[THINK]", "[/THINK]", "{}"),
    "kimi_vl": ("◁think▷", "◁/think▷", "{}"),
    "cohere": ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>{}<|END_RESPONSE|>"),
    "o1 replicas": ("<|begin_of_thought|>", "<|end_of_thought|>", "<|begin_of_solution|>{}<|end_of_solution|>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>", "{}"),
    "gemma": ("<|channel>thought\n", "<channel|>", "{}"),
    "medgemma": ("<unused94>thought\n", "<unused95>", "{}"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>{}<|close|>response<|sep|>"),
    "solar": ("<|think|>", "<|/think|>", "{}"),
    "inkling": (
        "<|message_model|><|content_thinking|>",
        "<|end_message|>",
        "<|message_model|><|content_text|>{}<|end_message|>",
    ),
    "muse": ("to=self<|message|>", "<|eom|>", "<|start|>assistant to=user<|message|>{}<|eot|>"),
    "harmony": ("<|channel|>analysis<|message|>", "<|end|>", HARMONY),
    "harmony without end": ("<|channel|>analysis<|message|>", "", HARMONY),
    "granite": ("Here is my thought process: ", "Here is my response: ", "{}"),
}
SHARED = {"inkling", "muse", "harmony", "harmony without end", "granite"}  # their ends close nothing unopened
DRAFTS = st.text(st.sampled_from("ab \n.{}\\")).map(lambda text: f"so {text} DRAFT ")


@given(st.sampled_from(list(FAMILIES)), DRAFTS, st.booleans())
def test_of_every_family_only_what_follows_its_reasoning_is_left(family: str, draft: str, opened: bool) -> None:
    opening, closing, around = FAMILIES[family]
    whole = opening + draft + closing + around.format("ANSWER")
    if opened and family != "granite":
        assert strip_think(whole.removeprefix(opening), header=f"<|im_start|>assistant\n{opening}").strip() == "ANSWER"
    else:
        assert strip_think(whole).strip() == "ANSWER"


@given(st.sampled_from(list(FAMILIES)), DRAFTS, st.data())
def test_nothing_is_left_of_reasoning_that_was_cut(family: str, draft: str, data: st.DataObject) -> None:
    opening, closing, _ = FAMILIES[family]
    text = draft + closing[: data.draw(st.integers(0, max(0, len(closing.strip()) - 1)))]
    assert strip_think(opening + text) == ""
    if family != "granite":
        assert strip_think(text, header="assistant\n" + opening) == ""
    if family not in SHARED:
        assert strip_think(text + closing) == ""  # opened by a header that nobody told us of


@given(st.lists(st.tuples(st.sampled_from([name for name in FAMILIES if name not in SHARED]), DRAFTS), max_size=4))
def test_blocks_of_any_families_may_follow_each_other(blocks: list[tuple[str, str]]) -> None:
    text = "".join(FAMILIES[name][0] + draft + FAMILIES[name][1] for name, draft in blocks)
    assert strip_think(text + "ANSWER") == "ANSWER"


def test_a_block_ends_with_its_own_mark_only() -> None:
    assert strip_think("<think>a<thinking>b</thinking>DRAFT") == ""
    assert strip_think("<think>a</thinking>DRAFT</think>ANSWER") == "ANSWER"
    assert strip_think("[THINK]a</think>DRAFT") == ""


def test_ordinary_text_is_no_mark() -> None:
    for text in (
        "I think [think] of <b>thinking</b>",
        "x <thinker> y",
        "<reasoning_effort>",
        "<think_off>4",
        "Usage: cancel <id> <reason>, 4",
        "<finish_reason>4",
        "Here's my thought process: 4",
    ):
        assert strip_think(text) == text


SINGLE = [pair[0] for name, pair in FAMILIES.items() if name not in SHARED and "\n" not in pair[0]]


@pytest.mark.parametrize("opening", SINGLE)
def test_a_mark_in_inline_code_or_quotes_does_not_swallow_the_answer(opening: str) -> None:
    for place in ("I mention `{}` in text. ANSWER", "`use {} first`: ANSWER", 'Put "{}" there. ANSWER'):
        text = place.format(opening)
        assert strip_think(text) == text
        assert strip_think("<think>plan `x`</think>" + text) == text


def test_a_closing_mark_between_inline_codes_still_closes() -> None:
    assert strip_think("<think>it is `x`</think>`ANSWER`") == "`ANSWER`"
    assert strip_think("it is `x`</think>`ANSWER`") == "`ANSWER`"
    assert strip_think("<think>plan</think>ANSWER, closed with `</think>`") == "ANSWER, closed with `</think>`"


def test_a_named_parser_looks_for_its_own_marks_only() -> None:
    text = "<think>a</think>[THINK]b[/THINK]ANSWER"
    assert strip_think(text, parser="qwen3") == "[THINK]b[/THINK]ANSWER"
    assert strip_think(text, parser="mistral") == "<think>a</think>ANSWER"
    assert strip_think(text, parser="none") == text


@pytest.mark.parametrize(
    ("header", "opening"),
    [
        ("<|im_start|>assistant\n", ""),
        ("<|im_start|>assistant\n<think>", "<think>"),
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
        ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
        ("<|im_assistant|>assistant<|im_middle|>◁think▷", "◁think▷"),
        ("<start_of_turn>model\n<think>Let me see. ", "<think>Let me see. "),
    ],
)
def test_what_a_header_leaves_open_is_its_end_from_the_mark_on(header: str, opening: str) -> None:
    assert left_open(header) == opening


def test_calls_of_every_channel_keep_their_marks() -> None:
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    text = strip_think("<|channel|>analysis<|message|>I call f<|end|><|start|>assistant" + call)
    assert text.endswith(call) and "I call f" not in text


@given(st.lists(st.sampled_from([*MARK_PIECES, "a", " ", "\n", "<", "[", "`", "t", "to=", "text "]), max_size=12))
def test_marks_are_found_where_trying_every_letter_finds_them(pieces: list[str]) -> None:
    text = "".join(pieces)
    everywhere = [(match.span(), match.lastgroup) for match in think._MARK.finditer(text)]
    assert [(match.span(), match.lastgroup) for match in think._marks(text)] == everywhere
