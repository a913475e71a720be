#!/usr/bin/env bash
# Brings TensorFlow 2.21 to a GPU machine that has CUDA 13 but no network, and runs what needs it.
#
# Where there is a network:
#     scripts/gpu_tensorflow.sh fetch WHEELS [--jax]      the wheels for Python 3.12, some gigabytes
#     scripts/gpu_tensorflow.sh slim WHEELS SMALL         a tenth of them: one card's machine code, packed well
#     scripts/gpu_tensorflow.sh cut SMALL PIECES          pieces of at most 60 MiB, and manifest.json
# On the GPU machine, once for each load of pieces, the manifest always among them:
#     scripts/gpu_tensorflow.sh bring FOLDER              says which pieces are still missing
# There, when none is:
#     scripts/gpu_tensorflow.sh run [--output DIRECTORY]  page: docs/results/<date>-<card>-tensorflow.md
# Here, without a GPU:
#     scripts/gpu_tensorflow.sh run --emulate [--quick]   every check, on the CPU
#     scripts/gpu_tensorflow.sh run --plan                which call does what, by times of an H100
#
# Every command may be cut off and repeated: what is done is skipped (run --again repeats it). Exit status of run:
# 0 all done and right, 1 something is wrong, 3 run it again. What decides most takes six calls of ten minutes:
# scripts/gpu_evidence.sh once, and run five times. Every network in every way (the stage "further") takes more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  case " $* " in *" --emulate "*) if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi ;; esac
fi
export PYTHONUNBUFFERED=1 TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-1}"
exec "$python" -m scripts.gpu.tensorflow_runs "$@"
