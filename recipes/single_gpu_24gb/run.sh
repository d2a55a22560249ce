#!/usr/bin/env bash
# recipes/single_gpu_24gb/run.sh [OVERRIDES...]
# DATA: where `prepare gsm8k` wrote (default datasets).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
export SDPO_DATA_DIR=${DATA:-datasets}

"$python" -m sdpo.main_sdpo --config-dir recipes/single_gpu_24gb --config-name single_gpu_24gb \
    "trainer.experiment_name=gsm8k" "$@"
