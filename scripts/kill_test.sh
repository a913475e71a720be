#!/usr/bin/env bash
# Kills and resumes a training at random moments (default 50), one of long epochs with checkpoints inside them (as
# many), on each kind of data that is no array (6), inside the writes of checkpoints (20), one of two hosts (20) and
# an evaluator, which is taken back (20). Also stops one of two hosts by SIGTERM (20), cuts two off from each other
# for up to ten seconds (10), and kills workers that Ray starts again (10), where Ray is installed:
#     scripts/kill_test.sh [KILLS] [SEED]
# OVERLAP_TRAIN_SOURCE_KILLS, OVERLAP_TRAIN_WRITE_KILLS, OVERLAP_TRAIN_HOST_KILLS, OVERLAP_TRAIN_EVALUATOR_KILLS,
# OVERLAP_TRAIN_HOST_STOPS, OVERLAP_TRAIN_HOST_CUTS and OVERLAP_TRAIN_RAY_KILLS set the other numbers. Data of Hugging
# Face and of Grain is killed by scripts/clients.sh, which installs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OVERLAP_TRAIN_KILLS="${1:-50}" OVERLAP_TRAIN_SEED="${2:-0}"
PYTEST_MARKS=kill exec scripts/test.sh tests/test_kill.py tests/parallel/test_hosts.py \
  tests/parallel/test_evaluator.py tests/parallel/test_cuts.py tests/parallel/test_launchers.py -s
