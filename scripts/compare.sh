#!/usr/bin/env bash
# Compares overlap_train with what one would run instead, on this machine; ends in tables.
# scripts/compare.sh --quick (three minutes), scripts/compare.sh --workloads=mnist,mlp --threads=1,6 --repeats=5
# Cut off, the same call with --resume goes on; --publish writes a dated page of docs/results. All compare_*.sh know both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" PYTHONUNBUFFERED=1
if [ -z "${TFDS_DATA_DIR:-}" ] && [ -d ../shared/data/tensorflow_datasets ]; then
  TFDS_DATA_DIR=$(cd ../shared/data/tensorflow_datasets && pwd)
  export TFDS_DATA_DIR
fi
exec .venv/bin/python -m scripts.bench.compare "$@"
