#!/usr/bin/env bash
# Measures zero-copy next to tf.convert_to_tensor.
# --resume goes on after a cut, --publish writes a dated page
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/python -W ignore -m scripts.bench.zero_copy "$@"
