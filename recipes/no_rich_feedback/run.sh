#!/usr/bin/env bash
# recipes/no_rich_feedback/run.sh [OVERRIDES...]
# One run for each of TASKS: chemistry, physics, biology, material (SciKnowEval) and tooluse. DATA: where `prepare` wrote.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
export SDPO_DATA_DIR=${DATA:-datasets}

for task in ${TASKS:-chemistry physics biology material tooluse}; do
    case $task in
        tooluse) choice=(task=tooluse) ;;
        *) choice=(task=sciknoweval "vars.subject=$task") ;;
    esac
    echo "== $task"
    "$python" -m sdpo.main_sdpo --config-dir recipes/no_rich_feedback --config-name no_rich_feedback \
        "${choice[@]}" "trainer.experiment_name=$task" "$@"
done
