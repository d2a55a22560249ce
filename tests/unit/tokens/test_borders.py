"""Pieces that are encoded by themselves have the ids of the whole, or are not cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from sdpo.tokens.borders import has_borders, pieces_of
from sdpo.tokens.chat import ChatRenderer

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = (
    "The answer of the first part is 12 and that of the second one 345.\n\ndef solve(a, b):\n    return a + b\n"
    "# it's what we've said: 'don't  do that'\n中文 的 回答\n第二行 and so on, x = [1, 2]\n\n\nthe end of it\n"
)


def byte_level(*steps, normalizer=None, **model) -> Tokenizer:
    core = Tokenizer(models.BPE(**model))
    core.normalizer = normalizer
    core.pre_tokenizer = pre_tokenizers.Sequence([*steps]) if len(steps) > 1 else steps[0]
    core.decoder = decoders.ByteLevel()
    return trained(core, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def split_bytes(pattern: str, *before) -> list:
    whole = pre_tokenizers.Split(Regex(pattern), "isolated")
    return [*before, whole, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def trained(core: Tokenizer, trainer=trainers.BpeTrainer, **options) -> Tokenizer:
    special = ["<unk>", "<|im_start|>", "<|im_end|>"]
    core.train_from_iterator([TEXT] * 3, trainer(special_tokens=special, show_progress=False, **options))
    return core


def letters() -> list[str]:
    return sorted({*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\n▁", *TEXT})


def gemma() -> Tokenizer:
    """Whole texts are merged: no words, a blank is a letter."""
    core = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    words = [pre_tokenizers.Split("▁", "merged_with_next"), pre_tokenizers.Split("\n", "isolated")]
    core.pre_tokenizer, final = pre_tokenizers.Sequence(words), core.pre_tokenizer
    trained(core, initial_alphabet=letters())
    core.pre_tokenizer = final
    return core


def phrases() -> Tokenizer:
    """Its tokens reach over blanks."""
    core = byte_level(*split_bytes(r"[^\n]+|\n+"))
    assert any("eĠ" in token for token in core.get_vocab())
    return core


def prepending() -> Tokenizer:
    """Begins every text with a blank."""
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return trained(core, initial_alphabet=letters())


def unigram() -> Tokenizer:
    core = Tokenizer(models.Unigram())
    core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    return trained(core, trainers.UnigramTrainer, unk_token="<unk>", initial_alphabet=letters())


def greedy_blanks() -> Tokenizer:
    core = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    core.add_tokens([AddedToken("the", rstrip=True, normalized=False)])
    return core


CUT = {
    "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: byte_level(pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": lambda: byte_level(*split_bytes(LLAMA_3), ignore_merges=True),
    "qwen": lambda: byte_level(*split_bytes(LLAMA_3), normalizer=normalizers.NFC()),
    "deepseek": lambda: byte_level(*split_bytes(DEEPSEEK, pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"))),
    "gemma": gemma,
}
WHOLE = {
    "phrases": phrases,
    "prepending": prepending,
    "unigram": unigram,
    "blanks": greedy_blanks,
    "prefix space": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "looks back": lambda: byte_level(*split_bytes(r"(?<=a )b|\S+|\s+")),
}
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_made: dict[str, ChatRenderer] = {}


def chat_of(name: str) -> ChatRenderer:
    if name not in _made:
        core = (CUT | WHOLE)[name]()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", chat_template=TEMPLATE)
        _made[name] = ChatRenderer(tokenizer)
    return _made[name]


def naive(chat: ChatRenderer, text: str) -> list[int]:
    """Ids of the rendering, one text, as the tokenizer encodes it."""
    rendered = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return chat.tokenizer.encode(rendered, add_special_tokens=False)


strange = ["\n", " ", "  ", "\t", "1", "23", "4567", "don't", "'s", ".", "...\n", "é", "e\u0301", "\u0301", "字", "ガ"]
words = st.sampled_from([*TEXT.split(" "), *strange, "a", "B"])
texts = st.lists(st.tuples(words, st.sampled_from([" ", "", "\n", "  "])), max_size=40).map(
    lambda pairs: "".join(word + blank for word, blank in pairs)
)


@pytest.mark.parametrize("name", [*CUT, *WHOLE])
@given(problem=texts, shown=texts, told=st.lists(texts, min_size=1, max_size=3))
def test_a_group_has_the_ids_of_each_prompt_encoded_alone(name: str, problem: str, shown: str, told: list[str]) -> None:
    chat = chat_of(name)
    problem, shown = problem + TEXT, TEXT + shown
    contents = [f"{problem}\nCorrect solution:\n\n{shown}\nFeedback:\n\n{text}\n\nSolve it." for text in told]
    rendered = [chat.render([{"role": "user", "content": content}], None, None) for content in contents]
    assert chat.encode(rendered, [problem, shown]) == [naive(chat, content) for content in contents]


@pytest.mark.parametrize("name", [*CUT, *WHOLE])
def test_only_tokenizers_without_tokens_across_are_cut(name: str) -> None:
    assert has_borders(chat_of(name).tokenizer) == (name in CUT)
    wrong = [
        left + right
        for left, right in (pieces_of(f"Say: {TEXT[:at]}", [TEXT[:at]])[:2] for at in range(80, len(TEXT), 7))
        if [*chat_of(name).tokenizer.encode(left), *chat_of(name).tokenizer.encode(right)]
        != chat_of(name).tokenizer.encode(left + right)
    ]
    assert not wrong if name in CUT else True


def test_a_tokenizer_with_an_encode_of_its_own_is_asked(chatml_tokenizer) -> None:
    class Own(PreTrainedTokenizerFast):
        def encode(self, text, **options):
            return [7, *super().encode(text, **options)]

    own = Own(tokenizer_object=chatml_tokenizer.backend_tokenizer, chat_template=TEMPLATE)
    assert ChatRenderer(own).prompt_ids([{"role": "user", "content": "x"}])[0] == 7
