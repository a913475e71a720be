#!/usr/bin/env bash
# Changes the core in 500 places, one at a time, and prints how many of the changes the default tests notice; after
# scripts/coverage.sh. The first argument is the file of results, which a second run goes on with; see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
.venv/bin/python -m pip install --quiet --disable-pip-version-check --target .coverage_packages --no-deps \
  'coverage>=7.10,<8' libcst 'mutmut>=3.8,<4'
export PYTHONPATH="$PWD/.coverage_packages${PYTHONPATH:+:$PYTHONPATH}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" MPLBACKEND=Agg
exec .venv/bin/python -m scripts.mutation "$@"
