#!/usr/bin/env bash
# recipes/benchmarks/grpo_vs_sdpo/run.sh [OPTIONS AND OVERRIDES of sdpo.cli.compare ...]
# SDPO against GRPO on the embedded task: three seeds, 45 s of training each. `--from-runs RUN...` only reads.
# Environment: OUT (folder for runs and results).
set -euo pipefail
cd "$(dirname "$0")/../../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}
out=${OUT:-runs/grpo_vs_sdpo}
export OMP_WAIT_POLICY=passive
unset PYTHONDONTWRITEBYTECODE
# Another model or task brings its own held-out files.
if [[ " $* " != *" model="* && " $* " != *" --from-runs "* ]]; then
    "$python" recipes/benchmarks/grpo_vs_sdpo/heldout.py "$out/heldout.jsonl"
    set -- --source programs --rates 5e-4,1e-3 --title "Embedded task: SDPO against GRPO" model=tiny_hard task=programs_hard \
        "data.val_files=[$out/heldout.jsonl]" trainer.test_freq=5 "$@"
fi
[[ " $* " == *" --seconds "* || " $* " == *" --from-runs "* ]] || set -- --seconds 45 "$@"
exec "$python" -m sdpo.cli.compare --out "$out" "$@"
