#!/usr/bin/env bash
# Sets up .venv if need be and trains a CNN on MNIST with validation overlapped. Arguments go to the example:
# scripts/demo.sh --epochs=2 --output_dir=runs/short
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
if [ -z "${TFDS_DATA_DIR:-}" ] && [ -d ../shared/data/tensorflow_datasets ]; then
  TFDS_DATA_DIR=$(cd ../shared/data/tensorflow_datasets && pwd)
  export TFDS_DATA_DIR
fi
# TensorFlow's start-up lines would drown the demo's. TensorFlow 2.21 prints some of them whatever the level says, so they are
# taken out; the filter outlives Ctrl-C, because the demo then still has things to say.
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
exec .venv/bin/python examples/mnist_overlap.py "$@" \
  2> >(trap '' INT TERM; exec grep --line-buffered -vE '^(WARNING: All log messages before absl|[IWE][0-9]{4} .*(oneDNN|cud|rebuild TensorFlow))|^To enable the following instructions' >&2)
