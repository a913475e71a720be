#!/usr/bin/env bash
# Measures zero-copy next to tf.convert_to_tensor and from_tensor_slices.
# Needs 6 GiB of free disk for a while (--folder), 16 GiB of free memory for the ways that copy, and five
# minutes. Smaller: --data-gib 0.5 --repeats 1; --resume goes on after a cut, --publish writes a dated page
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/python -W ignore -m scripts.bench.zero_copy "$@"
