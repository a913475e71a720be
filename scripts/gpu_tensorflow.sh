#!/usr/bin/env bash
# Runs what needs TensorFlow on the GPU of this machine, nine minutes a call. $PYTHON has TensorFlow and this project.
#
#     scripts/gpu_tensorflow.sh [--output DIRECTORY]  page: docs/results/<date>-<card>-tensorflow.md
#     scripts/gpu_tensorflow.sh --only policies       one of its parts
#     scripts/gpu_tensorflow.sh --emulate [--quick]   every check, on the CPU
#
# Cut off? Run the same command again: what is done is skipped (--again repeats it). Exit status: 0 all done and
# right, 1 something is wrong, 3 run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
fi
export PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-1}"
exec "$python" -m scripts.gpu.tensorflow_runs "$@"
