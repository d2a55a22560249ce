#!/usr/bin/env bash
# recipes/grpo_baseline/run.sh [OVERRIDES...]
# One run for each of TASKS: chemistry, physics, biology, material, tooluse, livecodebench. DATA: where `prepare` wrote.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python}
export SDPO_DATA_DIR=${DATA:-datasets}

for task in ${TASKS:-chemistry physics biology material tooluse livecodebench}; do
    case $task in
        tooluse) choice=(task=tooluse) ;;
        livecodebench)
            choice=(task=livecodebench actor_rollout_ref.actor.optim.lr_warmup_steps=0 actor_rollout_ref.rollout.val_kwargs.n=4) ;;
        *) choice=(task=sciknoweval "vars.subject=$task") ;;
    esac
    echo "== $task"
    "$python" -m sdpo.main_sdpo --config-dir recipes/grpo_baseline --config-name grpo_baseline \
        "${choice[@]}" "trainer.experiment_name=$task" "$@"
done
