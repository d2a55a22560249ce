#!/usr/bin/env bash
# recipes/rich_feedback/run.sh [OVERRIDES...]
# DATA: where `prepare livecodebench` wrote (default datasets).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
export SDPO_DATA_DIR=${DATA:-datasets}

"$python" -m sdpo.main_sdpo --config-dir recipes/rich_feedback --config-name rich_feedback \
    "trainer.experiment_name=livecodebench" "$@"
