#!/usr/bin/env bash
# Compares the scheduler with what a user would do instead: measured on this machine, simulated for the paper's.
#   scripts/compare_scheduling.sh --parts simulated --resume --publish
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
exec .venv/bin/python -m scripts.bench.scheduling "$@"
