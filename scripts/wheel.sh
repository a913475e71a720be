#!/usr/bin/env bash
# Builds a wheel into dist/, with the convolution compiled for the TensorFlow that it requires.
#   scripts/wheel.sh             for this platform; where there is no C++ compiler, without the library
#   scripts/wheel.sh --pure      for any platform, which compiles it on first use or leaves convolutions to TensorFlow
#   scripts/wheel.sh --try PYTHON ...  then trains with the newest wheel of dist/ in an environment of each interpreter
# Uses .venv if it is there, otherwise an environment of its own, made by $PYTHON (python3). $REPOSITORY_URL, such as
# https://host/owner/name, is where the links of the wheel's description lead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "${1:-}" = "--try" ]; then
  wheel=$PWD/$(ls -t dist/*.whl | head -n 1)
  for interpreter in "${@:2}"; do
    venv=$work/$(basename "$interpreter")
    "$interpreter" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
    (cd "$work" && "$venv/bin/python" -) << 'PROGRAM'
import keras
import numpy as np

from overlap_train import Trainer

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
history = Trainer(model).fit(x, y, epochs=2, validation_data=(x, y), verbose=0)
assert len(history.history["val_loss"]) == 2, history.history
PROGRAM
    echo "wheel: $("$interpreter" --version) trains with $(basename "$wheel")"
  done
  exit
fi
source=$work/source
mkdir "$source"
tar --exclude='__pycache__' --exclude='prebuilt' -cf - setup.cfg pyproject.toml README.md LICENSE overlap_train scripts tests | tar -xf - -C "$source"
options=(--quiet --disable-pip-version-check --no-deps --wheel-dir dist)
if [ -x .venv/bin/python ]; then
  scripts/setup.sh
  python=$PWD/.venv/bin/python
  options+=(--no-index --no-build-isolation)
else
  "${PYTHON:-python3}" -m venv "$work/venv"
  python=$work/venv/bin/python
  [ "${1:-}" = "--pure" ] || "$python" -m pip install --quiet --disable-pip-version-check "$source[conv]"
fi
"$python" scripts/description.py "$source" "${REPOSITORY_URL:-}"
if [ "${1:-}" != "--pure" ]; then
  bundling="from pathlib import Path; from overlap_train.conv import build, native_cache
native_cache.bundle(build.build(), Path('overlap_train/conv/prebuilt'))"
  if built=$(cd "$source" && "$python" -c "$bundling" 2>&1); then
    platform=$("$python" -c 'import sysconfig; print(sysconfig.get_platform().replace("-", "_").replace(".", "_"))')
    options+=("--config-settings=--build-option=--plat-name=$platform")
  else
    echo "wheel: without the compiled convolution: $(tail -n 1 <<< "$built")" >&2
  fi
fi
"$python" -m pip wheel "${options[@]}" "$source"
ls -1 dist/*.whl
