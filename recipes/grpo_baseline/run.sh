#!/usr/bin/env bash
# recipes/grpo_baseline/run.sh [OVERRIDES...]
# One run for each of TASKS: chemistry, physics, biology, material, tooluse, livecodebench. SDPO_DATA_DIR: where
# `prepare` wrote (default datasets).
set -euo pipefail
[ -z "${SDPO_DATA_DIR:-}" ] || SDPO_DATA_DIR=$(realpath -m "$SDPO_DATA_DIR")
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}

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
