"""The built-in tokenizer: exact on every text, one token per word of the task, a chat template with roles."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from sdpo.embedded.corpus import SECOND_PHASE, Corpus
from sdpo.embedded.programs import ALL_STEPS, OPENINGS, body
from sdpo.embedded.tokenizer import save_tokenizer

TEXTS = [
    "x = x * 3\nx = -x\n    return abs(x - 4)",
    "def f(x):\n\tif x:\r\n        return {'a': [1, 2.5e-3]}  # nøt 漢字 🙂\n\n\n",
    "",
    " ",
    "  two  blanks  ",
    "\n\n\n\n",
    "Ġ is not a blank",
    "nul \0 and bell \a",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


def ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_gives_every_text_back_exactly(tokenizer, text):
    assert tokenizer.decode(ids(tokenizer, text)) == text
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == text


def test_random_unicode_comes_back_exactly(tokenizer):
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(chr(rng.choice([rng.randrange(1, 128), rng.randrange(160, 0xD800)])) for _ in range(20))
        assert tokenizer.decode(ids(tokenizer, text)) == text


def test_all_that_pre_training_shows_is_words_and_never_bytes(tokenizer):
    corpus = Corpus(SECOND_PHASE["hard"], seed=3)
    for _ in range(300):
        text = corpus.draw()
        for part in (text.user, text.answer):
            tokens = tokenizer.convert_ids_to_tokens(ids(tokenizer, part))
            letters = [t for t in tokens if len(t) == 1 and t.isascii() and t.isalpha() and t != "x"]
            assert set(letters) <= {"f"}, (letters, part)


def test_a_line_of_a_program_is_a_handful_of_tokens(tokenizer):
    assert max(len(ids(tokenizer, step.code)) for step in ALL_STEPS) == 8
    assert len(ids(tokenizer, body(ALL_STEPS[:3]))) == 20


def test_the_chat_template_gives_every_role_a_token_and_ends_every_turn(tokenizer):
    messages = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "tool")]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == ("<|begin|><|system|>x<|end|><|user|>x<|end|><|assistant|>x<|end|><|tool|>x<|end|><|assistant|>")
    assert len(ids(tokenizer, text)) == 1 + 4 * 3 + 1
    assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=True) == "xxxx"


def test_the_three_special_tokens_differ(tokenizer):
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3
    assert tokenizer.eos_token == "<|end|>"


def test_plain_encoding_adds_nothing(tokenizer):
    assert tokenizer.encode("x = x") == ids(tokenizer, "x = x")


def test_building_twice_gives_the_same_file(tokenizer, tmp_path):
    save_tokenizer(tmp_path)
    first = Path(tokenizer.name_or_path) / "tokenizer.json"
    assert (tmp_path / "tokenizer.json").read_bytes() == first.read_bytes()
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"]


def test_every_opening_is_made_of_words(tokenizer):
    assert all(len(ids(tokenizer, opening)) <= 10 for opening in OPENINGS)
