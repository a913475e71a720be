#!/usr/bin/env bash
# Kills and resumes a training at random moments (default 50), one of long epochs with checkpoints inside them at
# as many, and one of two hosts at 20:
#     scripts/kill_test.sh [KILLS] [SEED]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OVERLAP_TRAIN_KILLS="${1:-50}" OVERLAP_TRAIN_SEED="${2:-0}"
PYTEST_MARKS=kill exec scripts/test.sh tests/test_kill.py tests/parallel/test_hosts.py -s
