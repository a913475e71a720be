#!/usr/bin/env bash
# Stress of short failing fits for so many seconds (default 1800): scripts/soak.sh [SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OVERLAP_TRAIN_SOAK_S="${1:-1800}"
PYTEST_MARKS=soak exec scripts/test.sh tests/test_soak.py -s
