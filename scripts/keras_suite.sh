#!/usr/bin/env bash
# Runs Keras's own tests of fit and of its callbacks through Trainer; prints how many of those that Keras passes pass.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/python scripts/keras_suite.py "$@"
