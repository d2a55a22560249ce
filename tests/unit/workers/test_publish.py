"""What the actor sends is all of what is in the model's folder, and an engine that takes it scores as the trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from sdpo.config.schema import Config
from sdpo.rollout.build import build_engine
from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all
from sdpo.weights import in_process, shared_memory
from sdpo.weights.coverage import check_coverage
from sdpo.workers.actor import Actor, split_over_ranks

SIZES = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


def actor_of(config: Config, family: str, tied: bool, tokenizer: str, folder: Path) -> Actor:
    sizes = SIZES | HEADS | (EXPERTS if "mo" in family or family in ("mixtral", "gpt_oss") else {})
    torch.manual_seed(0)
    model_config = AutoConfig.for_model(family, **sizes, initializer_range=0.3, tie_word_embeddings=tied)
    AutoModelForCausalLM.from_config(model_config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    config.actor_rollout_ref.model.path = str(folder)
    config.trainer.log_samples = 0
    return Actor(config, 0, 1, "cpu", 10)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_sent_covers_the_models_folder_experts_and_head_too(
    actor_config, random_llama, tmp_path: Path, family: str, tied: bool
) -> None:
    actor = actor_of(actor_config, family, tied, random_llama, tmp_path / "model")
    check_coverage(actor.publish(str(tmp_path / "sent")), str(tmp_path / "model"))


@pytest.mark.parametrize("transport", [shared_memory, in_process])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_fused_experts_train_and_an_engine_that_took_them_samples_with_the_trainers_log_probs(
    actor_config, mini_batch, random_llama, tmp_path: Path, family: str, transport
) -> None:
    actor = actor_of(actor_config, family, True, random_llama, tmp_path)
    actor_config.actor_rollout_ref.rollout.name = "hf"
    engine = build_engine(actor_config, "cpu")
    experts = actor.student.lm.model.layers[1].mlp.experts.gate_up_proj
    before = experts.detach().clone()
    actor.update(split_over_ranks([mini_batch], actor_config.actor_rollout_ref.actor, 1)[0])
    assert (experts - before).abs().amax(dim=(1, 2)).min() > 1e-4  # each of the four
    base = transport.new_base()
    asyncio.run(engine.load_weights(actor.publish(base), actor.policy_version))
    transport.remove_base(base)
    asked = [GenerationRequest(str(i), [1, 5 + i], SamplingSpec(seed=i, max_tokens=8)) for i in range(4)]
    done = draw_all(engine, asked)
    actor.student.eval()
    for generation in done.values():
        prompt = asked[int(generation.request_id)].prompt_ids
        ids = torch.tensor([prompt + generation.response_ids])
        with torch.no_grad():
            own = actor.student.lm(ids).logits[0, 1:-1].log_softmax(-1)
        own = own.gather(1, ids[0, 2:, None]).flatten()
        torch.testing.assert_close(torch.tensor(generation.log_probs), own, atol=1e-4, rtol=0)
