#!/usr/bin/env bash
# Builds, checks and times our CUDA code on the GPU of this machine, within ten minutes and without TensorFlow.
# Needs nvcc 13 and a Python with PyTorch; compute-sanitizer is used if it is there.
#
#     scripts/gpu_evidence.sh                      page: docs/results/<date>-<card>.md, the rows next to it
#     scripts/gpu_evidence.sh --output DIRECTORY   the same elsewhere
#     scripts/gpu_evidence.sh --emulate            a rehearsal on the CPU, marked as such; needs g++ and NumPy
#
# Where only a few files can be fetched from: tar czf evidence.tgz -C DIRECTORY . afterwards.
# Cut off? Run the same command again: what is done is skipped (--again repeats it). Exit status: 0 all done and
# right, 1 something is wrong, 3 run it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  if ! "$python" -c 'import numpy' 2>/dev/null && [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
fi
export PYTHONUNBUFFERED=1
exec "$python" -m scripts.gpu.evidence "$@"
