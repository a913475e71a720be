#!/usr/bin/env bash
# Runs Keras's own tests of fit and of its callbacks through Trainer; prints how many of those that Keras passes pass.
#   scripts/keras_suite.sh --all --jobs 2    all of Keras's tests that call fit or evaluate; --resume goes on after a stop
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
exec .venv/bin/python scripts/keras_suite.py "$@"
