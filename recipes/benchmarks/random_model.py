"""A model folder with random weights in the shape of a known one: for times, which do not depend on what it says.

python recipes/benchmarks/random_model.py 0.5b FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

# hidden size, layers, heads, key-value heads, inner size, vocabulary, tied head: of Qwen2.5 but for the first
SHAPES = {
    "tiny": (64, 2, 4, 2, 128, 2048, True),
    "0.5b": (896, 24, 14, 2, 4864, 151936, True),
    "7b": (3584, 28, 28, 4, 18944, 152064, False),
}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|start|>' + m['role'] + '\\n' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


def tokenizer_of(size: int) -> PreTrainedTokenizerFast:
    """One token per byte, and as many others as the vocabulary has, which no text has."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|start|>", "<|end|>"]
    words = [*letters, *(f"\ue000{number}" for number in range(size - len(letters) - len(special)))]
    core = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens(special)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def make(name: str, folder: Path) -> Path:
    """Writes it unless it is there."""
    if (folder / "config.json").exists():
        return folder
    hidden, layers, heads, groups, inner, vocabulary, tied = SHAPES[name]
    tokenizer = tokenizer_of(vocabulary)
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        intermediate_size=inner,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    print(make(sys.argv[1], Path(sys.argv[2])))
