"""What the actor publishes is all of what is in the model's folder, for an engine that reads such folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from sdpo.weights.coverage import check_coverage
from sdpo.weights.in_process import load_into
from sdpo.weights.shared_memory import read
from sdpo.workers.actor import Actor

SIZES = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize("family", ["llama", "qwen3", "mixtral", "qwen3_moe", "olmoe", "gpt_oss"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_publish_for_vllm_covers_the_models_folder_experts_and_head_too(
    actor_config, random_llama, tmp_path: Path, family: str, tied: bool
) -> None:
    sizes = SIZES | HEADS | (EXPERTS if "mo" in family or family in ("mixtral", "gpt_oss") else {})
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, tie_word_embeddings=tied))
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(random_llama).save_pretrained(tmp_path / "model")
    actor_config.actor_rollout_ref.model.path = str(tmp_path / "model")
    actor_config.trainer.log_samples = 0
    actor = Actor(actor_config, 0, 1, "cpu", 10)
    check_coverage(actor.publish(str(tmp_path / "published")), str(tmp_path / "model"))
    actor_config.actor_rollout_ref.rollout.name = "hf"  # has the modules themselves
    load_into(model, read(actor.publish(str(tmp_path / "published")), 0))
