#!/usr/bin/env bash
# recipes/single_gpu_24gb/run.sh [OVERRIDES...]
# SDPO_DATA_DIR: where `prepare gsm8k` wrote (default datasets).
set -euo pipefail
[ -z "${SDPO_DATA_DIR:-}" ] || SDPO_DATA_DIR=$(realpath -m "$SDPO_DATA_DIR")
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}

"$python" -m sdpo.main_sdpo --config-dir recipes/single_gpu_24gb --config-name single_gpu_24gb \
    "trainer.experiment_name=gsm8k" "$@"
