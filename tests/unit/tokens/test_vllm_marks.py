"""Each reasoning parser of the installed vLLM: its marks are among ours; where it finds an answer, we find the same."""

from __future__ import annotations

import pytest

from sdpo.config.parsers import REASONING_PARSERS
from sdpo.grading.vllm_calls import AnyTokenizer
from sdpo.tokens.think import left_open, strip_think

pytest.importorskip("vllm")

OPTIONS = {"thinking": True, "enable_thinking": True, "reasoning_effort": "high", "thinking_mode": "enabled"}
# Parsers that say no marks, or hand out the whole text: opening, closing, around the answer.
UNSAID = {
    "granite": ("Here is my thought process: ", "Here is my response: ", "{}"),
    "hunyuan_a13b": ("<think>\n", "\n</think>\n", "<answer>\n{}\n</answer>"),
    "minimax_m2_append_think": ("<think>", "</think>", "{}"),
    "muse_glimmer": ("to=self<|message|>", "<|eom|>", "<|start|>assistant to=user<|message|>{}<|eot|>"),
    "openai_gptoss": (
        "<|channel|>analysis<|message|>",
        "<|end|>",
        "<|start|>assistant<|channel|>final<|message|>{}<|return|>",
    ),
}
NO_ANSWERS = {"openai_gptoss", "minimax_m2_append_think", "cohere_command3", "cohere_command4"}  # of vLLM's


def test_every_reasoning_parser_of_vllm_has_a_family_here():
    from vllm.reasoning import ReasoningParserManager

    assert REASONING_PARSERS.keys() == set(ReasoningParserManager.list_registered())


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_its_marks_are_known_named_and_unnamed(name):
    from vllm.reasoning import ReasoningParserManager

    parser = ReasoningParserManager.get_reasoning_parser(name)(AnyTokenizer(), chat_template_kwargs=dict(OPTIONS))
    said = (parser.reasoning_start_str, parser.reasoning_end_str, "{}")
    opening, closing, around = UNSAID.get(name, said)
    assert name in UNSAID or None not in said
    text = f"{opening}A DRAFT{closing}{around.format('ANSWER')}"
    for which in ("auto", name):
        assert strip_think(text, parser=which).removeprefix("<answer>\n").removesuffix("\n</answer>") == "ANSWER"
        assert strip_think(f"{opening}A DRAFT", parser=which) == ""
        assert strip_think("ANSWER", parser=which) == "ANSWER"
        if name != "granite":
            assert left_open(f"<|im_start|>assistant\n{opening}", which) == opening
    if name not in NO_ANSWERS:
        reasoning, answer = parser.extract_reasoning(text, None)
        assert "A DRAFT" in reasoning and answer.strip().removeprefix("<answer>\n") == "ANSWER"
