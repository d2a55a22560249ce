#!/usr/bin/env bash
# recipes/rich_feedback/run.sh [OVERRIDES...]
# SDPO_DATA_DIR: where `prepare livecodebench` wrote (default datasets).
set -euo pipefail
[ -z "${SDPO_DATA_DIR:-}" ] || SDPO_DATA_DIR=$(realpath -m "$SDPO_DATA_DIR")
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}

"$python" -m sdpo.main_sdpo --config-dir recipes/rich_feedback --config-name rich_feedback \
    "trainer.experiment_name=livecodebench" "$@"
