#!/usr/bin/env bash
# recipes/cpu_quickstart/run.sh [hard|easy|unseen ...] SDPO against GRPO on the embedded task, from the same weights and seeds.
# Environment: RATES, SEEDS, SDPO_STEPS (GRPO gets four times as many), TEST_FREQ, OUT, JOBS (runs at a time),
# EXTRA (overrides for every run).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
rates=(${RATES:-5e-4 1e-3 2e-3})
seeds=(${SEEDS:-0 1 2})
out=${OUT:-runs/cpu_quickstart}
settings=("${@:-hard easy}")
[ $# -gt 0 ] || settings=(hard easy)
unset PYTHONDONTWRITEBYTECODE
export OMP_WAIT_POLICY=passive

run() { # setting algorithm rate seed
    local setting=$1 algorithm=$2 rate=$3 seed=$4 root steps
    case $algorithm in
        sdpo) root=sdpo steps=$(steps_of "$setting") ;;
        grpo) root=baseline_grpo steps=$((4 * $(steps_of "$setting"))) ;;
    esac
    $python -m sdpo.main_sdpo --config-name $root "model=tiny_$setting" "task=programs_$(task_of "$setting")" \
        "actor_rollout_ref.actor.optim.lr=$rate" "data.seed=$seed" "trainer.seed=$seed" \
        "trainer.total_training_steps=$steps" trainer.test_freq=${TEST_FREQ:-5} data.val_max_samples=100 \
        trainer.export_hf=false trainer.save_freq=0 \
        "trainer.default_local_dir=$out/$setting/$algorithm-lr$rate-seed$seed" ${EXTRA:-} > "$out/$setting/$algorithm-lr$rate-seed$seed.log" 2>&1
}
steps_of() { [ "$1" = easy ] && echo $((${SDPO_STEPS:-40} / 2)) || echo "${SDPO_STEPS:-40}"; }
task_of() { [ "$1" = easy ] && echo easy || echo hard; } # the problems of `unseen` are those of `hard`
export -f run steps_of task_of
export python out SDPO_STEPS TEST_FREQ EXTRA

for setting in "${settings[@]}"; do
    mkdir -p "$out/$setting"
    # The grid on the first seed, then the best rate of each algorithm on the others.
    for rate in "${rates[@]}"; do printf '%s\n' "$setting grpo $rate ${seeds[0]}" "$setting sdpo $rate ${seeds[0]}"; done |
        xargs -P "${JOBS:-1}" -I{} bash -c 'run {}'
    for algorithm in sdpo grpo; do
        best=$($python -m sdpo.cli.compare "$out/$setting/$algorithm"-lr*-seed"${seeds[0]}" --best)
        for seed in "${seeds[@]:1}"; do echo "$setting $algorithm $best $seed"; done
    done | xargs -P "${JOBS:-1}" -I{} bash -c 'run {}'
    $python -m sdpo.cli.compare "$out/$setting"/*/ --out "$out/$setting/comparison" --title "Embedded task, $setting"
done
