#!/usr/bin/env bash
# Uses the library for so many seconds (default 1800), in short fits that often fail, and samples memory, threads,
# descriptors, files and /dev/shm; ends with 1 if something grows: scripts/soak.sh [SECONDS] [--publish]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/python -W ignore -m scripts.bench.soak "$@"
