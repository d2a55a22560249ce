#!/usr/bin/env bash
# All measurements that wait for a GPU, in one command: writes OUT/gpu.json and OUT/gpu.md.
#
#   recipes/benchmarks/gpu.sh --out DIR          needs one GPU with 80 GB or more, and 40 GB of disk in DIR
#   recipes/benchmarks/gpu.sh --cpu --out DIR    the same program with small shapes, on a CPU
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python}" "$here/gpu.py" "$@"
