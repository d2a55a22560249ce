#!/usr/bin/env bash
# recipes/benchmarks/grpo_vs_sdpo/run.sh [OPTIONS AND OVERRIDES of sdpo.cli.compare ...]
# SDPO against GRPO, as it is and in its standard variants, on the embedded task. `--from-runs RUN...` only reads.
# Environment: SETTING (hard, easy, rare or unseen), OUT (folder for runs and results).
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}
setting=${SETTING:-hard} here=recipes/benchmarks/grpo_vs_sdpo
out=${OUT:-runs/grpo_vs_sdpo/$setting}
export OMP_WAIT_POLICY=passive
unset PYTHONDONTWRITEBYTECODE
grpo=baseline_grpo:trainer.group_name=GRPO
std=algorithm.norm_adv_by_std_in_grpo=true
four=actor_rollout_ref.actor.ppo_mini_batch_size=4 # of the 16 problems of a batch
# Another model or task brings its own held-out files.
if [[ " $* " != *" model="* && " $* " != *" --from-runs "* ]]; then
    "$python" $here/heldout.py "$out/heldout.jsonl"
    "$python" $here/heldout.py "$out/tuning.jsonl" --first 100 --known 0
    [ "$setting" = easy ] && task=easy || task=hard # the problems of `rare` and `unseen` are those of `hard`
    set -- --source programs --rates 2.5e-4,5e-4,1e-3,2e-3 --tuning "data.val_files=[$out/tuning.jsonl]" \
        --arm sdpo:trainer.group_name=SDPO --arm $grpo --arm "$grpo-std,$std" --arm "$grpo-4-mini-batches,$four" \
        --title "Embedded task, $setting: SDPO against GRPO" "model=tiny_$setting" "task=programs_$task" \
        "data.val_files=[$out/heldout.jsonl]" trainer.test_freq=5 "$@"
fi
[[ " $* " == *" --seconds "* || " $* " == *" --from-runs "* ]] || set -- --seconds 45 "$@"
exec "$python" -m sdpo.cli.compare --out "$out" "$@"
