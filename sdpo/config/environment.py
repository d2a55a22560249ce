"""Environment variables that every process of a run has. Standard library only."""

from __future__ import annotations

# Set where the user has not. They count only when set before torch, Ray and vLLM are imported.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "passive",  # trainer and engine take turns on the cores: waiting threads must sleep
    # ... but not at once (some tenths of a millisecond): waking them costs more than a small matrix product.
    "GOMP_SPINCOUNT": "10000",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TOKENIZERS_PARALLELISM": "true",  # pieces of prompts are encoded on all cores; what forks here encodes nothing
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # vLLM's kernels have torch remark on how they bind memory
}
