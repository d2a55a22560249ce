"""The built-in model's tokenizer: one token per word of the task, single bytes for all other text.

A pre-token (a word, a digit, an operator, with at most one blank before it) that is in the vocabulary is one token; any
other is spelt in bytes. So every text encodes, and decoding gives it back exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from sdpo.config.schema import SelfDistillationConfig
from sdpo.embedded.grader import HEADINGS
from sdpo.embedded.programs import ALL_STEPS, CONNECTORS, INPUT_RANGE, OPENINGS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"  # END closes every turn: the end-of-sequence token
ROLES = ("system", "user", "assistant", "tool")
SPLIT = r" ?[A-Za-z_]+| ?[0-9]| ?(?://|\*\*|==|[^\sA-Za-z_0-9])|\n+|\s"
MODEL_MAX_LENGTH = 2048
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# Words of the feedback that no heading, phrase or program holds.
FEEDBACK_WORDS = (
    "Input: -1\nExpected: -2\nGot: -3\nStep 4 should be: \nIt makes -5 into -6, yours made -7\n"
    "yours stopped, yours made 8\n"
    "Nothing should follow step 9\nError: NameError: name 'y' is not defined\nSyntax error in: \n0 0\nNone...\n"
    "The answer was cut off before it ended.\nThe answer holds no program.\nZeroDivisionError: integer modulo by zero\n"
)


def task_texts() -> list[str]:
    """Texts that together hold every word of the task: sentences, programs, reprompts, feedback."""
    templates = SelfDistillationConfig()
    texts = [
        templates.reprompt_template.format(prompt="", solution="", feedback=""),
        templates.solution_template.format(successful_previous_attempt=""),
        templates.feedback_template.format(feedback_raw=""),
    ]
    texts += [opening + phrase for opening in OPENINGS for step in ALL_STEPS for phrase in step.phrases]
    texts += [f"x{connector}{phrase}" for connector in CONNECTORS for step in ALL_STEPS for phrase in step.phrases]
    texts += [f"{step.code}\nreturn x\nreturn {step.code.removeprefix('x = ')}" for step in ALL_STEPS]
    texts += [f"Step 1 should be: {step.phrase}\n" for step in ALL_STEPS]
    texts += [f"Input: {x}\nx{x}" for x in INPUT_RANGE]
    return [*texts, FEEDBACK_WORDS, *HEADINGS.values(), "\n\n"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, made from the task's words; the same every time."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {piece for text in task_texts() for piece, _ in pre_tokenizer.pre_tokenize_str(text)}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = alphabet + sorted(words - set(alphabet))
    # Without merges, and with whole pre-tokens looked up first, a pre-token is one entry or its bytes.
    core = Tokenizer(models.BPE(vocab={entry: i for i, entry in enumerate(entries)}, merges=[], ignore_merges=True))
    core.pre_tokenizer = pre_tokenizer
    core.decoder = decoders.ByteLevel()
    specials = [BOS, END, PAD, *(f"<|{role}|>" for role in ROLES)]
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=specials[3:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MODEL_MAX_LENGTH,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Writes tokenizer.json and tokenizer_config.json (with the chat template inside) and returns the tokenizer."""
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    settings = folder / "tokenizer_config.json"
    values = json.loads(settings.read_text()) | {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }  # also known to transformers 4
    settings.write_text(json.dumps(values, indent=2) + "\n")
    return tokenizer
