"""Every family of causal language models is scored as it scores itself, or refused by name."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from sdpo.config.schema import Config, ModelConfig
from sdpo.errors import ConfigError, ModelError, RolloutError
from sdpo.models.dropout import configured_rates, switch_off_dropout
from sdpo.models.forward import PolicyModule
from sdpo.models.load import load_causal_lm, load_policy
from sdpo.models.rotary import pin_rotary
from sdpo.models.tree_plan import plan_of_pass
from sdpo.models.trial import check_scores
from sdpo.rollout.engine import GenerationRequest, SamplingSpec, draw_all
from sdpo.rollout.hf_generate import HfEngine
from sdpo.tokens.packing import pack_responses

sys.path.append(str(Path(__file__).parents[3] / "recipes" / "benchmarks"))
families = importlib.import_module("families")

SCORED = ["gpt2", "opt", "falcon", "falcon_h1", "cohere", "granite", "gemma2", "recurrent_gemma", "llama4_text"]
REFUSED = ["modernbert-decoder", "doge", "roberta"]
BUILT_ONLY_WITH_MORE = ("gemma3n", "gemma4_assistant", "gemma4_unified_assistant", "musicgen", "musicgen_melody")


def assert_scored_as_itself(module: PolicyModule, seed: int) -> None:
    """Rows of three prompts, some alike, in one pass of training mode, against each row alone in evaluation mode."""
    draw = random.Random(seed)
    prompts = [[draw.randrange(5, 200) for _ in range(draw.randint(1, 9))] for _ in range(2)]
    prompts += [prompts[0], prompts[0][:1] + prompts[1]]
    responses = [[draw.randrange(5, 200) for _ in range(draw.randint(1, 12))] for _ in prompts]
    with torch.no_grad():
        side = pack_responses(prompts, responses, module.prefix_sharing_unsupported is not None)
        found = module.scores(side).logits().log_softmax(-1)
        module.lm.eval()
        rows = zip(prompts, responses, strict=True)
        own = [module.lm(input_ids=torch.tensor([p + r]), use_cache=False).logits[0, len(p) - 1 : -1] for p, r in rows]
        module.lm.train()
    wanted = torch.cat(own)[:, : module.vocab_size].log_softmax(-1)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("family", SCORED)
def test_log_probs_are_those_of_the_model_itself(family: str) -> None:
    module = families.trained(families.build(family))
    for seed in range(3):
        assert_scored_as_itself(module, seed)


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_is_not_known_is_refused_in_one_line_with_its_name(family: str) -> None:
    with pytest.raises(ModelError, match=f"family {family} ") as refused:
        families.trained(families.build(family))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in families.FAMILIES if name not in BUILT_ONLY_WITH_MORE])
def test_every_family_of_transformers_is_scored_as_itself_or_refused_by_name(family: str) -> None:
    lm = families.build(family)
    try:
        module = families.trained(lm)
    except ModelError as error:
        assert f"family {lm.config.model_type} " in str(error) and "\n" not in str(error)
        return
    for seed in range(3):
        assert_scored_as_itself(module, seed)
    if module.prefix_sharing_unsupported is None:
        assert max(families.exactness(family)["float64"]) < 1e-10


def tiny_llama(**settings) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 211, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3}
    return LlamaForCausalLM(LlamaConfig(**(sizes | heads | settings))).train()


AFTER_THE_HEAD = {
    "multiplied": lambda logits, size: logits * (1 + size),
    "capped": lambda logits, size: torch.tanh(logits * size) / size,
    "with a bias": lambda logits, size: logits + size * torch.arange(logits.shape[-1]) / logits.shape[-1],
    "by position": lambda logits, size: logits * (1 + size * torch.arange(logits.shape[1])[:, None]),
    "rolled": lambda logits, size: logits.roll(1, dims=-1),
    "some impossible": lambda logits, size: logits.index_fill(-1, torch.tensor([7]), -1e4),
}


@settings(max_examples=30)
@given(what=st.sampled_from(sorted(AFTER_THE_HEAD)), size=st.floats(0.01, 3.0))
def test_whatever_a_forward_pass_does_to_its_logits_is_found(what: str, size: float) -> None:
    lm = tiny_llama()
    change, forward = AFTER_THE_HEAD[what], lm.forward

    def changed(*args, **named):
        output = forward(*args, **named)
        output.logits = change(output.logits, size)
        return output

    lm.forward = changed
    with pytest.raises(ModelError, match="nats off"):
        check_scores(PolicyModule(lm, 211), "some/model")


@pytest.mark.parametrize("where", ["own", "training", "tree"])
@pytest.mark.parametrize("error", [TypeError, AttributeError, KeyError, IndexError, RuntimeError, NotImplementedError])
def test_what_a_models_code_raises_is_one_line_or_does_not_matter(where: str, error: type[Exception]) -> None:
    lm = tiny_llama()
    part = lm if where == "own" else lm.model
    forward = part.forward

    def fails(*args, **named):
        if where == "own" or (where == "training" and lm.training) or (where == "tree" and plan_of_pass()):
            raise error("line one\nline two")
        return forward(*args, **named)

    part.forward = fails
    switch_off_dropout(lm)
    module = PolicyModule(lm, 211)
    if where == "tree":
        check_scores(module, "some/model")
        assert "with a prefix tree" in module.prefix_sharing_unsupported
        return
    with pytest.raises(ModelError, match="family llama .*fails: " + error.__name__) as refused:
        check_scores(module, "some/model")
    assert "\n" not in str(refused.value)


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ModelError, match="LlamaModel has no output head"):
        PolicyModule(tiny_llama().model, 211)


@pytest.mark.parametrize("family", ["gpt2", "opt", "falcon", "dbrx", "phimoe", "bloom"])
def test_no_kind_of_dropout_touches_the_scores_unless_asked(family: str) -> None:
    """Attention, residual, embedding and layer dropout, a router's noise; in modules and in configurations."""
    side = pack_responses([[5, 6, 7]], [list(range(8, 60))], padded=True)
    module = PolicyModule(families.build(family), 211)
    with torch.no_grad():
        noisy = [module.scores(side).logits() for _ in range(2)]
        switch_off_dropout(module.lm)
        quiet = [module.scores(side).logits() for _ in range(2)]
    assert not torch.equal(*noisy) and torch.equal(*quiet)
    assert module.lm.training


def test_dropout_is_off_by_default_a_setting_has_it_and_an_export_keeps_it(tmp_path: Path) -> None:
    families.build("gpt2").save_pretrained(tmp_path / "model")
    config = Config()
    config.actor_rollout_ref.model = ModelConfig(path=str(tmp_path / "model"))
    side = pack_responses([[5, 6, 7]], [[8, 9]])
    for wanted in (False, True):
        config.actor_rollout_ref.model.enable_dropout = wanted
        lm = load_policy(config, torch.float32)
        module = PolicyModule(lm, 211)
        check_scores(module, "model")
        with torch.no_grad():
            assert torch.equal(module.scores(side).logits(), module.scores(side).logits()) is not wanted
        with configured_rates(lm):
            lm.save_pretrained(tmp_path / "again")
        assert GPT2Config.from_pretrained(tmp_path / "again").attn_pdrop == families.RATE


ROPES = {
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]},
    "dynamic": {"factor": 4.0},
}


def rotary(family: str, kind: str):
    lengths = {"max_position_embeddings": 64 if kind == "longrope" else 24}
    rope = {"rope_type": kind, "rope_theta": 1e4, "original_max_position_embeddings": 24, **ROPES[kind]}
    rope |= {"short_mscale": 1.1, "long_mscale": 1.3} if family == "phimoe" else {}
    special = {"rope_parameters": rope, "original_max_position_embeddings": 24, "pad_token_id": 0, **lengths}
    torch.manual_seed(0)
    kind = families.CONFIG_MAPPING[family]
    return families.AutoModelForCausalLM.from_config(families.small(kind, **special)).train()


def run_config(prompt: int, response: int, reprompt: int, engine: str = "hf") -> Config:
    config = Config()
    config.data.max_prompt_length, config.data.max_response_length = prompt, response
    config.actor_rollout_ref.actor.self_distillation.max_reprompt_len = reprompt
    config.actor_rollout_ref.rollout.name = engine
    return config


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", "longrope"), ("llama", "dynamic"), ("qwen2", "dynamic"), ("phi3", "longrope"), ("phimoe", "longrope")],
)
def test_a_short_row_scores_alone_as_beside_a_long_one_and_after_it(family: str, kind: str) -> None:
    lm = rotary(family, kind)
    switch_off_dropout(lm)
    pin_rotary(lm, run_config(8, 40, 16))
    module, draw = PolicyModule(lm, 211), random.Random(1)
    prompt, short = [5, 6, 7], [8, 9, 10, 11]
    for padded in (True, False):
        alone = module.scores(pack_responses([prompt], [short], padded)).logits()
        for length in (1, 19, 21, 22, 45):  # on both sides of where the scaling changes
            long = [draw.randrange(5, 200) for _ in range(length)]
            together = module.scores(pack_responses([prompt, prompt], [short, long], padded)).logits()[: len(short)]
            torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(module.scores(pack_responses([prompt], [short], padded)).logits(), alone)


@pytest.mark.parametrize(("prompt", "reprompt", "refused"), [(10, 12, False), (20, 20, False), (10, 20, True)])
def test_an_engine_that_would_scale_its_rows_otherwise_than_the_teachers_is_refused(prompt, reprompt, refused) -> None:
    config = run_config(prompt, 10, reprompt, "vllm")
    if not refused:
        pin_rotary(rotary("phi3", "longrope"), config)
        return
    with pytest.raises(ConfigError, match="max_model_len: got 20; allowed: above 24"):
        pin_rotary(rotary("phi3", "longrope"), config)
    config.actor_rollout_ref.rollout.max_model_len = 30
    pin_rotary(rotary("phi3", "longrope"), config)
    pin_rotary(rotary("phi3", "longrope"), run_config(prompt, 10, reprompt, "hf"))


def test_a_longrope_model_is_scored_with_the_factors_of_the_runs_longest_row() -> None:
    """As vLLM does: the long ones for all rows when one may be long."""
    ids = torch.tensor([[5, 6, 7, 8]])
    lm = rotary("phi3", "longrope").eval()
    short = lm(input_ids=ids, use_cache=False).logits
    pin_rotary(lm, run_config(8, 8, 8))
    torch.testing.assert_close(lm(input_ids=ids, use_cache=False).logits, short)
    pin_rotary(lm, run_config(8, 40, 8))
    assert (lm(input_ids=ids, use_cache=False).logits - short).abs().max() > 1e-3


@pytest.mark.parametrize("damage", ['{"model_type": "llama", "hidden_size": "wide"}', '{"model_type": 7}', "[]", "{"])
def test_a_damaged_configuration_is_one_line(tmp_path: Path, damage: str) -> None:
    (tmp_path / "config.json").write_text(damage)
    with pytest.raises(ModelError, match="actor_rollout_ref.model.path") as refused:
        load_causal_lm(ModelConfig(path=str(tmp_path)), torch.float32)
    assert "\n" not in str(refused.value)


GENERATE = ["gpt2", "falcon", "gemma2", "granite", "qwen3_next", "qwen3_5_text", "bamba", "lfm2"]
DO_NOT = ["mamba", "recurrent_gemma"]  # they have caches of their own


@pytest.mark.parametrize("family", GENERATE + DO_NOT)
def test_generation_gives_the_log_probs_of_training_or_one_line(family: str) -> None:
    module = families.trained(families.build(family))
    requests = [
        GenerationRequest(str(i), prompt, SamplingSpec(max_tokens=3 + 3 * i))  # one leaves before the others
        for i, prompt in enumerate([[5, 6, 7], [8] * 9, [5, 6, 7]])
    ]
    try:
        done = draw_all(HfEngine(module.lm, (1,), 64), requests)
    except RolloutError as error:
        assert family in DO_NOT
        assert "name=vllm" in str(error) and "\n" not in str(error) and type(module.lm).__name__ in str(error)
        return
    responses = [done[request.request_id].response_ids for request in requests]
    padded = module.prefix_sharing_unsupported is not None
    side = pack_responses([request.prompt_ids for request in requests], responses, padded)
    ids = torch.tensor([i for response in responses for i in response])
    found = module.scores(side).logits().log_softmax(-1).gather(1, ids[:, None])[:, 0]
    drawn = torch.tensor([p for request in requests for p in done[request.request_id].log_probs])
    torch.testing.assert_close(found, drawn, rtol=1e-5, atol=1e-4)
