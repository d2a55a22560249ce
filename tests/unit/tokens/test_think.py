from __future__ import annotations

import pytest

from sdpo.tokens.think import strip_think


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
