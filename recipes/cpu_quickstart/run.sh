#!/usr/bin/env bash
# recipes/cpu_quickstart/run.sh [hard|easy|rare|unseen ...] SDPO against GRPO on the embedded task, from the same weights and seeds.
# Environment: RATES and SEEDS (separated by commas), SDPO_STEPS (GRPO gets four times as many; `easy` takes half), TEST_FREQ,
# OUT, JOBS (runs at a time), EXTRA (overrides for every run).
set -euo pipefail
cd "$(dirname "$0")/../.."
settings=("$@")
[ $# -gt 0 ] || settings=(hard easy)
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}
unset PYTHONDONTWRITEBYTECODE
export OMP_WAIT_POLICY=passive
for setting in "${settings[@]}"; do
    steps=${SDPO_STEPS:-40} task=hard # the problems of `rare` and `unseen` are those of `hard`
    out=${OUT:-runs/cpu_quickstart}/$setting
    [ "$setting" != easy ] || steps=$((steps / 2)) task=easy
    "$python" recipes/benchmarks/grpo_vs_sdpo/heldout.py "$out/tuning.jsonl" --first 100 --known 0
    # shellcheck disable=SC2086
    "$python" -m sdpo.cli.compare --out "$out" --title "Embedded task, $setting" \
        --arm "sdpo:trainer.total_training_steps=$steps" --arm "baseline_grpo:trainer.total_training_steps=$((4 * steps))" \
        --rates "${RATES:-2.5e-4,5e-4,1e-3,2e-3}" --tuning "data.val_files=[$out/tuning.jsonl]" --seeds "${SEEDS:-0,1,2}" --jobs "${JOBS:-1}" \
        "model=tiny_$setting" "task=programs_$task" "trainer.test_freq=${TEST_FREQ:-5}" data.val_max_samples=100 ${EXTRA:-}
done
