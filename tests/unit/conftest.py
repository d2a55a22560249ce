from __future__ import annotations

import pytest
import torch

from sdpo.config.schema import Config
from sdpo.kernels.distillation import Distillation, TokenTerms, distillation_loss
from sdpo.kernels.divergence import Divergence
from sdpo.kernels.lazy_logits import LazyLogits, ResponseScores
from sdpo.losses.token_batch import TokenBatch

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] | trim }}"
    "{% for call in m.get('tool_calls') or [] %}{{ '<tool_call>' + (call['function']['arguments'] | tojson) }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)


@pytest.fixture(scope="session")
def chatml_tokenizer():
    """Byte-level BPE with ChatML control tokens; no network. `<|im_end|>` is both end and padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = (
        "Hello world. The following is feedback from your unsuccessful earlier attempt: Correctly solve the question."
    )
    core.train_from_iterator([text, "user assistant system\n\nCorrect solution:\n\n"] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=CHATML
    )


@pytest.fixture
def scores_of():
    """logits [N, V] -> scores without a head."""

    def build(logits: torch.Tensor) -> ResponseScores:
        return ResponseScores(logits, None, None, logits.shape[-1])

    return build


@pytest.fixture
def distill():
    """Loss and terms; every token has the weight it is given, 1 otherwise."""

    def build(
        student: ResponseScores,
        teacher: LazyLogits,
        ids: torch.Tensor,
        spec: Divergence,
        weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, TokenTerms]:
        given = torch.ones(ids.shape, dtype=torch.float64) if weights is None else weights
        return distillation_loss(student, teacher, ids, Distillation(spec, lambda part, log_prob: given[part]))

    return build


@pytest.fixture
def token_batch_of():
    """row lengths -> a float64 batch; denominators default to those of this batch."""

    def build(lengths: list[int], vocab: int = 7, **fields) -> TokenBatch:
        tokens = sum(lengths)
        generator = torch.Generator().manual_seed(tokens)
        defaults = {
            "response_ids": torch.randint(0, vocab, (tokens,), generator=generator),
            "row": torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64)),
            "row_lengths": torch.tensor(lengths, dtype=torch.int64),
            "weights": torch.ones(tokens, dtype=torch.float64),
            "tokens": tokens,
            "sequences": len(lengths),
            "max_response_length": max(lengths, default=1),
        }
        return TokenBatch(**{**defaults, **fields})

    return build


@pytest.fixture
def plain_config():
    """A fresh configuration without importance weights and with a symmetric clip."""

    def build(**self_distillation) -> Config:
        config = Config()
        config.algorithm.rollout_correction.rollout_is = None
        actor = config.actor_rollout_ref.actor
        actor.clip_ratio = 0.2
        actor.clip_ratio_low = actor.clip_ratio_high = None
        settings = actor.self_distillation
        settings.is_clip = None
        for name, value in self_distillation.items():
            assert hasattr(settings, name), name
            setattr(settings, name, value)
        return config

    return build


@pytest.fixture
def no_process_group():
    import torch.distributed as dist

    assert not dist.is_initialized()
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
