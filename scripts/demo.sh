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
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"  # or TensorFlow's start-up lines drown the demo's
exec .venv/bin/python examples/mnist_overlap.py "$@"
