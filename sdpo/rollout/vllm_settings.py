"""vLLM's knobs, as plain dictionaries: environment, engine arguments, sampling parameters. Does not import vLLM.

Tried with vLLM 0.30. What each knob buys on two CPU cores is on the rollout page of the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sdpo.config.adapters import LARGEST_VLLM_RANK
from sdpo.config.schema import RolloutConfig
from sdpo.errors import ConfigError, problem
from sdpo.rollout.engine import SamplingSpec

CPU_BLOCK_TOKENS = 32  # KV cache block; vLLM's CPU kernels want a multiple of 32, small blocks share more of a prompt
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, LARGEST_VLLM_RANK)
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.01, 2.0  # outside vLLM clamps silently, or refuses


def prepare_environment(device: str, own_process: bool) -> None:
    """Set what vLLM reads from the environment; call before its first import. What the user has set stays, except where
    the engine core runs: that is decided here."""
    defaults = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if device == "cpu":
        # Trainer and engine take turns on the same cores: bound or spinning OpenMP threads of one starve the other.
        defaults |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_WAIT_POLICY": "passive"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_process else "0"
    if own_process:
        # fork would copy the trainer's gloo and OpenMP threads in whatever state they are.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


def engine_arguments(
    model_path: str, config: RolloutConfig, max_model_len: int, device: str, hf_config: Any, **more: Any
) -> dict[str, Any]:
    """Keyword arguments of `vllm.EngineArgs`. `hf_config` is the model's transformers configuration; `more` is passed
    on."""
    on_cpu = device == "cpu"
    arguments: dict[str, Any] = {
        "model": model_path,
        "skip_tokenizer_init": True,  # ids in, ids out; the stop ids are given with each request
        "dtype": _dtype(config.dtype, on_cpu),
        "generation_config": "vllm",  # not the model's own temperature, top_k, repetition_penalty, ...
        "logprobs_mode": "processed_logprobs",  # after temperature, top-k and top-p: of the distribution sampled from
        "max_logprobs": 1,
        "max_model_len": max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": max(config.max_num_batched_tokens, max_model_len),
        "tensor_parallel_size": config.tensor_model_parallel_size,
        "enforce_eager": on_cpu if config.enforce_eager is None else config.enforce_eager,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "sdpo.weights.vllm_worker.PublishedWeights",
        "seed": 0,
    }
    if on_cpu:
        arguments["block_size"] = CPU_BLOCK_TOKENS
        arguments["kv_cache_memory_bytes"] = _cpu_cache_bytes(config, max_model_len, hf_config, arguments["dtype"])
    else:
        arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
        arguments["enable_sleep_mode"] = config.free_cache_engine
    return arguments | more


def lora_arguments(rank: int) -> dict[str, Any]:
    """Of an engine with one adapter. vLLM has a list of ranks to choose a room of."""
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": min(room for room in LORA_RANKS if room >= rank)}


def sampling_arguments(spec: SamplingSpec, room: int, eos_ids: Sequence[int]) -> dict[str, Any]:
    """Keyword arguments of `vllm.SamplingParams`: every field that shapes the distribution is named, none is inherited.

    `room` is what `max_model_len` leaves for the response, in tokens. Raises ConfigError for a temperature that vLLM
    would change silently or refuse.
    """
    if not spec.greedy and not LOWEST_TEMPERATURE <= spec.temperature <= HIGHEST_TEMPERATURE:
        allowed = f"0 (greedy) or a number in [{LOWEST_TEMPERATURE}, {HIGHEST_TEMPERATURE}] with vLLM"
        raise ConfigError(problem("rollout.temperature", spec.temperature, allowed, "use rollout.name=hf otherwise"))
    return {
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "top_k": max(spec.top_k, 0),  # vLLM: 0 is off
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": min(spec.max_tokens, room),
        "seed": None if spec.greedy else spec.seed,
        "logprobs": 0 if spec.log_probs else None,  # 0: the drawn token's only
        "flat_logprobs": True,
        "stop_token_ids": [] if spec.ignore_eos else list(eos_ids),
        "ignore_eos": spec.ignore_eos,
        "detokenize": False,
    }


def _dtype(name: str, on_cpu: bool) -> str:
    if name == "auto":
        return "float32" if on_cpu else "bfloat16"
    return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(name, name)


def _cpu_cache_bytes(config: RolloutConfig, max_model_len: int, hf_config: Any, dtype: str) -> int:
    """The asked-for cache, or less when that many sequences of that length cannot fill it: its pages are touched at
    start, 3 s per GiB. Half as much again is left for prefixes of finished requests."""
    asked = config.cpu_kv_cache_gb * 2**30
    text = hf_config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", None)
    head_size = getattr(text, "head_dim", None)
    if head_size is None and heads:
        head_size = text.hidden_size // text.num_attention_heads
    if not heads or not head_size:
        return asked
    token_bytes = 2 * text.num_hidden_layers * heads * head_size * (4 if dtype == "float32" else 2)
    blocks = -(-max_model_len // CPU_BLOCK_TOKENS) + 1
    return min(asked, int(1.5 * config.max_num_seqs * blocks * CPU_BLOCK_TOKENS * token_bytes))
