"""vLLM takes a mixture of experts whole, again and again, and takes our source for one of its own."""

from __future__ import annotations

import asyncio
import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

from sdpo.config.schema import Config, RolloutConfig
from sdpo.errors import RolloutError
from sdpo.models.adapters import active, add_adapters, of_adapter
from sdpo.models.load import load_policy
from sdpo.rollout.build import build_engine
from sdpo.rollout.engine import Generation, GenerationRequest, SamplingSpec, draw_all
from sdpo.weights import gloo
from sdpo.weights.adapter import AdapterSource
from sdpo.weights.source import WeightSource
from sdpo.weights.transport import publish, transport_of

if importlib.util.find_spec("vllm") is None:
    pytest.skip("needs vLLM", allow_module_level=True)


def mixture() -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_key_value_heads": 1}
    config = Qwen3MoeConfig(**sizes, **experts, max_position_embeddings=64, eos_token_id=2, tie_word_embeddings=True)
    config.initializer_range = 0.15
    return Qwen3MoeForCausalLM(config).eval()


def drawn(engine) -> list[tuple[list[int], Generation]]:
    prompts = {str(i): [1, 5 + i, 9] for i in range(4)}
    asked = [GenerationRequest(name, ids, SamplingSpec(seed=7, max_tokens=20)) for name, ids in prompts.items()]
    return [(prompts[name], generation) for name, generation in draw_all(engine, asked).items()]


def off(lm: PreTrainedModel, prompt: list[int], generation: Generation) -> float:
    """The largest difference of a log-prob to that of the model itself, in nats."""
    ids = torch.tensor([prompt + generation.response_ids])
    with torch.no_grad():
        own = lm(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1).gather(1, ids[0, len(prompt) :, None])
    return (own.flatten() - torch.tensor(generation.log_probs)).abs().max().item()


def test_after_each_sync_experts_are_scored_as_the_trainer_does_whichever_way_they_came(tmp_path: Path) -> None:
    from sdpo.rollout.vllm_engine import VllmEngine

    lm = mixture()
    lm.save_pretrained(tmp_path / "model")
    engine = VllmEngine(str(tmp_path / "model"), RolloutConfig(max_num_seqs=16), 32, 32, "cpu", (2,))
    for version in range(3):
        if version:
            with torch.no_grad():
                for p in lm.parameters():
                    p.add_(torch.randn_like(p), alpha=0.05)
            assert max(off(lm, *each) for each in drawn(engine)) > 0.1
            source = WeightSource(lm, torch.float32)
            if version % 2:
                asyncio.run(engine.load_weights(publish(source, str(tmp_path / "sent"), version), version))
            else:
                place = gloo.new_base("127.0.0.1", 1, 60)
                with ThreadPoolExecutor(1) as sender:
                    sent = sender.submit(publish, source, place, version)
                    asyncio.run(engine.load_weights(place, version))
                    sent.result()
        assert max(off(lm, *each) for each in drawn(engine)) < 1e-4
    engine.close()


def test_the_source_keeps_what_vllms_weight_sources_promise() -> None:
    from vllm.distributed.weight_transfer.base import WeightSource as VllmSource
    from vllm.distributed.weight_transfer.base import layerwise_groups
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine

    source = WeightSource(mixture(), torch.bfloat16)
    declared = source.metadata()
    assert source.groups() == layerwise_groups([meta.name for meta in declared])
    ours, theirs = source.iter_groups(), VllmSource.iter_groups(source)
    assert [names for names, _ in ours] == [names for names, _ in theirs]
    assert source.held_names() is VllmSource.held_names(source) is None
    checked = list(NCCLTrainerWeightTransferEngine._checked_iter(source, declared))
    assert [name for name, _ in checked] == [meta.name for meta in declared]
    methods = {name for name in vars(VllmSource) if not name.startswith("_")} | {"__iter__"}
    assert methods <= set(dir(WeightSource))


def dense() -> tuple[Config, PreTrainedModel]:
    """A policy with an adapter that does something at each of its layers."""
    config = Config()
    model, actor = config.actor_rollout_ref.model, config.actor_rollout_ref.actor
    model.path, model.lora_rank, model.lora_alpha, model.use_rslora = "builtin://tiny/hard", 12, 6, True
    actor.policy_loss.loss_mode = "vanilla"
    lm = load_policy(config, torch.float32).eval()
    add_adapters(lm, config, torch.float32)
    move(lm)
    return config, lm


@torch.no_grad()
def move(lm: PreTrainedModel) -> None:
    for name, p in lm.named_parameters():
        if of_adapter(name):
            p.add_(torch.randn_like(p), alpha=0.05)


@pytest.mark.parametrize("how", ["adapter", pytest.param("merged", marks=pytest.mark.slow)])
def test_after_each_sync_an_adapter_is_scored_as_the_trainer_does(tmp_path: Path, how: str) -> None:
    """And only then: each version counts from its own load on, and one that vLLM would use in part is refused."""
    config, lm = dense()
    config.actor_rollout_ref.rollout.lora, config.actor_rollout_ref.rollout.max_num_seqs = how, 16
    config.data.max_prompt_length = config.data.max_response_length = 32
    source = {"adapter": AdapterSource, "merged": WeightSource}[how](lm, torch.float32)
    engine = build_engine(config, "cpu")
    with active(lm, None):
        assert max(off(lm, *each) for each in drawn(engine)) < 1e-4
    for version in range(1, 4):
        assert max(off(lm, *each) for each in drawn(engine)) > 0.05
        place = publish(source, str(tmp_path / "sent"), version)
        asyncio.run(engine.load_weights(place, version))
        assert max(off(lm, *each) for each in drawn(engine)) < 1e-4
        with pytest.raises(RolloutError, match="version"):
            asyncio.run(engine.load_weights(place, version + 1))
        assert max(off(lm, *each) for each in drawn(engine)) < 1e-4
        move(lm)
    if how == "adapter":
        groups = [{name.replace("layers.1", "layer.1"): t for name, t in group.items()} for group in source.gathered()]
        place = transport_of(str(tmp_path)).send(groups, str(tmp_path / "half"), 9)
        with pytest.raises(RolloutError, match=r"layer\.1\.mlp"):
            asyncio.run(engine.load_weights(place, 9))
    engine.close()
