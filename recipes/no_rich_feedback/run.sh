#!/usr/bin/env bash
# recipes/no_rich_feedback/run.sh [OVERRIDES...]
# One run for each of TASKS: chemistry, physics, biology, material (SciKnowEval) and tooluse. SDPO_DATA_DIR: where
# `prepare` wrote (default datasets).
set -euo pipefail
[ -z "${SDPO_DATA_DIR:-}" ] || SDPO_DATA_DIR=$(realpath -m "$SDPO_DATA_DIR")
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}

for task in ${TASKS:-chemistry physics biology material tooluse}; do
    case $task in
        tooluse) choice=(task=tooluse) ;;
        *) choice=(task=sciknoweval "vars.subject=$task") ;;
    esac
    echo "== $task"
    "$python" -m sdpo.main_sdpo --config-dir recipes/no_rich_feedback --config-name no_rich_feedback \
        "${choice[@]}" "trainer.experiment_name=$task" "$@"
done
