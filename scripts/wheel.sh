#!/usr/bin/env bash
# Builds a wheel into dist/, with the convolution compiled for the TensorFlow that the lock names.
#   scripts/wheel.sh           for this platform; where there is no C++ compiler, without the library
#   scripts/wheel.sh --pure    for any platform, which compiles it on first use or leaves convolutions to TensorFlow
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
python=$PWD/.venv/bin/python
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
tar --exclude='__pycache__' --exclude='prebuilt' -cf - setup.cfg pyproject.toml README.md LICENSE overlap_train scripts tests | tar -xf - -C "$source"
options=(--quiet --no-deps --no-index --no-build-isolation --wheel-dir dist)
if [ "${1:-}" != "--pure" ]; then
  if built=$("$python" -m overlap_train.conv.build --into "$source/overlap_train/conv/prebuilt" 2>&1); then
    platform=$("$python" -c 'import sysconfig; print(sysconfig.get_platform().replace("-", "_").replace(".", "_"))')
    options+=("--config-settings=--build-option=--plat-name=$platform")
  else
    echo "wheel: without the compiled convolution: $(tail -n 1 <<< "$built")" >&2
  fi
fi
"$python" -m pip wheel "${options[@]}" "$source"
ls -1 dist/*.whl
