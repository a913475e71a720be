#!/usr/bin/env bash
# Rewrites requirements.lock from requirements.in, for every supported Python (needs uv: pip install uv).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv pip compile --quiet --universal --python-version 3.10 --generate-hashes \
  --custom-compile-command scripts/lock.sh requirements.in -o requirements.lock "$@"
