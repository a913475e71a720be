#!/usr/bin/env bash
# Sets up .venv if need be and runs the tests. Arguments go to pytest: scripts/test.sh tests/test_trainer.py -k lag
# Without arguments, in one process more than there are cores, up to four: each waits for others at times.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" MPLBACKEND=Agg
if [ -z "${TFDS_DATA_DIR:-}" ] && [ -d ../shared/data/tensorflow_datasets ]; then
  TFDS_DATA_DIR=$(cd ../shared/data/tensorflow_datasets && pwd)
  export TFDS_DATA_DIR
fi
# Tests begin many interpreters, each of which would compile this package, and pytest all tests, anew.
unset PYTHONDONTWRITEBYTECODE
# The convolution that setup.sh has compiled serves the tests too: a build lies under a digest of its sources.
if [ -z "${OVERLAP_TRAIN_CACHE_DIR:-}" ] && [ -n "${XDG_CACHE_HOME:-${HOME:-}}" ]; then
  export OVERLAP_TRAIN_CACHE_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/overlap_train"
fi
if [ $# -eq 0 ] && [ -z "${PYTEST_MARKS+set}" ]; then
  cores=$(getconf _NPROCESSORS_ONLN)
  set -- --numprocesses=$((cores < 4 ? cores + 1 : 4)) --dist=worksteal
fi
exec .venv/bin/python -m pytest -q -m "${PYTEST_MARKS-not nightly and not kill}" "$@"
