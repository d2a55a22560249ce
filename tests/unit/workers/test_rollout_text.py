"""From the ids of an engine to a grade: marks that are special tokens, and reasoning that the template opened."""

from __future__ import annotations

import copy

import pytest

from sdpo.config.schema import Config
from sdpo.records import Prompt
from sdpo.rollout.scripted import ScriptedEngine
from sdpo.workers import rollout
from sdpo.workers.grader import ThreadGraderPool
from sdpo.workers.rollout import RenderedPrompt, RolloutWorker, training_plan

MARKS = ["<think>", "</think>", "[THINK]", "[/THINK]", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>"]


@pytest.fixture(scope="module")
def tokenizer(chatml_tokenizer):
    tokenizer = copy.deepcopy(chatml_tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [*MARKS, "<|im_start|>", "<|fim_middle|>"]})
    return tokenizer


def draw(monkeypatch, tokenizer, texts, **options):
    """The samples of one prompt whose responses are these texts; they end by themselves where they end a turn."""
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert all(tokenizer.decode(response) == text for response, text in zip(ids, texts, strict=True))
    engine = ScriptedEngine({f"p/{i}": response for i, response in enumerate(ids)}, [tokenizer.eos_token_id])
    monkeypatch.setattr(rollout, "load_tokenizer", lambda model: tokenizer)
    monkeypatch.setattr(rollout, "build_engine", lambda *_: engine)
    config = Config()
    config.actor_rollout_ref.rollout.n = len(texts)
    worker = RolloutWorker(config, "cpu", ThreadGraderPool(config))
    prompt = Prompt("p", ({"role": "user", "content": "2+2? <think>"},), "math", "4", template_kwargs=options)
    [group] = worker.generate([RenderedPrompt(prompt, worker.chat.student_ids(prompt))], training_plan(config, 0))
    worker.close()
    return group.samples


def test_marks_that_are_special_tokens_stay_and_what_they_enclose_is_no_answer(monkeypatch, tokenizer):
    assert "<think>" not in tokenizer.decode(tokenizer.encode("<think>"), skip_special_tokens=True)
    texts = {
        "<think>\\boxed{4} maybe</think>no idea<|im_end|>": 0.0,
        "<think>\\boxed{4} maybe": 0.0,
        "<think>no</think>\\boxed{4}<|im_end|>": 1.0,
        "[THINK]\\boxed{4}[/THINK]no<|im_end|>": 0.0,
        "<|channel|>analysis<|message|>\\boxed{4}<|end|><|start|>assistant<|channel|>final<|message|>no<|im_end|>": 0.0,
        "<|channel|>analysis<|message|>no<|end|><|start|>assistant<|channel|>final<|message|>\\boxed{4}<|im_end|>": 1.0,
        "\\boxed{<|fim_middle|>4}<|im_end|>": 1.0,
    }
    samples = draw(monkeypatch, tokenizer, list(texts))
    assert [sample.grade.reward for sample in samples] == list(texts.values())
    assert samples[0].response_text == "<think>\\boxed{4} maybe</think>no idea"
    assert samples[-1].response_text == "\\boxed{4}"


@pytest.mark.parametrize("header", ["<think>", "<think>\n", "<think>\n\n</think>\n\n", ""])
def test_reasoning_that_the_header_opened_is_open_until_the_response_closes_it(monkeypatch, tokenizer, header):
    opened = copy.deepcopy(tokenizer)
    opened.chat_template = tokenizer.chat_template.replace(
        "assistant\\n' }}", "assistant\\n' + '" + header.replace("\n", "\\n") + "' }}"
    )
    texts = ["It is \\boxed{4}, or", "no</think>\\boxed{4}<|im_end|>", "\\boxed{4}</think>no idea<|im_end|>"]
    samples = draw(monkeypatch, opened, texts)
    leaves_open = header.startswith("<think>") and "</think>" not in header
    assert [sample.grade.reward for sample in samples] == [0.0 if leaves_open else 1.0, 1.0, 0.0]
    assert samples[0].response_text == (header if leaves_open else "") + texts[0]
