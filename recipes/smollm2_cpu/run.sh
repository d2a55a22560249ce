#!/usr/bin/env bash
# recipes/smollm2_cpu/run.sh SOURCES [OVERRIDES...]
# SOURCES: a folder with sciknoweval/chemistry/{train,test}.json and gsm8k/{train,test}.jsonl as published.
set -euo pipefail
sources=$(realpath "${1:?a folder with sciknoweval/chemistry and gsm8k}")
shift
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python)}

make smollm2
"$python" -m sdpo.cli.smollm2 models/smollm2-135m
"$python" -m sdpo.cli.data prepare sciknoweval "$sources/sciknoweval/chemistry" datasets/sciknoweval/chemistry
"$python" -m sdpo.cli.data prepare gsm8k "$sources/gsm8k" datasets/gsm8k

for data in sciknoweval/chemistry gsm8k; do
    echo "== $data"
    "$python" -m sdpo.main_sdpo --config-dir recipes/smollm2_cpu --config-name smollm2_cpu \
        "data.train_files=[datasets/$data/train.parquet]" "data.val_files=[datasets/$data/test.parquet]" \
        "trainer.experiment_name=${data%%/*}" "$@"
done
