from __future__ import annotations

from types import SimpleNamespace

import pytest

from sdpo.config.schema import RolloutConfig
from sdpo.errors import ConfigError
from sdpo.rollout.engine import SamplingSpec
from sdpo.rollout.vllm_settings import engine_arguments, lora_arguments, sampling_arguments


def model_config(**more):
    text = SimpleNamespace(
        num_hidden_layers=4, num_key_value_heads=4, num_attention_heads=4, head_dim=32, hidden_size=128
    )
    vars(text).update(more)
    return SimpleNamespace(get_text_config=lambda: text)


def arguments(device="cpu", max_model_len=128, hf_config=None, **more):
    return engine_arguments("m", RolloutConfig(**more), max_model_len, device, hf_config or model_config())


def test_the_models_own_generation_defaults_shape_nothing():
    given = sampling_arguments(SamplingSpec(temperature=1.0), 100, (2,))
    assert (given["top_p"], given["repetition_penalty"], given["top_k"], given["min_p"]) == (1.0, 1.0, 0, 0.0)
    assert arguments()["generation_config"] == "vllm"
    assert arguments()["logprobs_mode"] == "processed_logprobs"


def test_all_stop_ids_are_passed_unless_they_are_to_be_ignored():
    assert sampling_arguments(SamplingSpec(), 100, (2, 7))["stop_token_ids"] == [2, 7]
    given = sampling_arguments(SamplingSpec(ignore_eos=True), 100, (2, 7))
    assert (given["stop_token_ids"], given["ignore_eos"]) == ([], True)


def test_a_response_gets_no_more_room_than_the_model_length_leaves():
    assert sampling_arguments(SamplingSpec(max_tokens=50), 30, ())["max_tokens"] == 30
    assert sampling_arguments(SamplingSpec(max_tokens=20), 30, ())["max_tokens"] == 20


@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_a_temperature_that_vllm_would_change_or_refuse_is_refused_here(temperature):
    with pytest.raises(ConfigError, match="rollout.temperature"):
        sampling_arguments(SamplingSpec(temperature=temperature), 100, ())


def test_dtype_and_compilation_follow_the_device_unless_they_are_set():
    assert (arguments()["dtype"], arguments()["enforce_eager"]) == ("float32", True)
    on_gpu = arguments("cuda")
    assert (on_gpu["dtype"], on_gpu["enforce_eager"], on_gpu["enable_sleep_mode"]) == ("bfloat16", False, True)
    assert arguments("cuda", enforce_eager=True, dtype="float16")["enforce_eager"] is True
    assert arguments(dtype="bf16")["dtype"] == "bfloat16"


def test_the_cpu_cache_is_no_larger_than_the_sequences_can_fill_and_never_larger_than_asked():
    token_bytes = 2 * 4 * 4 * 32 * 4
    assert arguments(max_num_seqs=16)["kv_cache_memory_bytes"] == int(1.5 * 16 * 160 * token_bytes)
    assert arguments(max_num_seqs=256, max_model_len=4096)["kv_cache_memory_bytes"] == 2**30
    unknown = model_config(num_key_value_heads=None, num_attention_heads=None)
    assert arguments(hf_config=unknown)["kv_cache_memory_bytes"] == 2**30


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (4, 8), (12, 16), (48, 64), (512, 512)])
def test_a_rank_gets_the_smallest_room_that_vllm_has(rank, room):
    assert lora_arguments(rank)["max_lora_rank"] == room
