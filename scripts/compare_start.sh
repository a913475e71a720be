#!/usr/bin/env bash
# Compares whole calls with Keras's from the first second on, caches empty and warm, in fresh processes.
#   scripts/compare_start.sh                                     all networks, two epochs of four steps: an hour
#   scripts/compare_start.sh --networks mlp,lstm --repeats 3     some of them
#   scripts/compare_start.sh --epochs 5 --steps 30               longer fits
#   scripts/compare_start.sh --resume --publish                  go on after a cut; write a dated page
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-3}"
exec .venv/bin/python -m scripts.bench.start "$@"
