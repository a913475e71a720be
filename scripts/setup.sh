#!/usr/bin/env bash
# Makes .venv from requirements.lock, installs the project into it and compiles its convolution; a second call
# reuses all of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv
stamp=$venv/.installed
wanted=$(cat requirements.lock setup.cfg pyproject.toml | sha256sum | cut -d' ' -f1)
if [ -x $venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

find_python() {
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.10; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup: no Python 3.10 to 3.13 found; install one, or name it: PYTHON=/path/to/python3.12 $0" >&2
  return 1
}

# Two scripts started together build one environment, not half of two.
exec 9>.setup.lock
if command -v flock >/dev/null; then flock 9; fi
if [ "$(cat $stamp 2>/dev/null)" = "$wanted" ]; then exit 0; fi

python=$(find_python)
echo "setup: installing into $venv with $("$python" --version) (first time: a few minutes, 2 GB)"
if [ ! -x $venv/bin/python ]; then
  "$python" -m venv $venv || {
    echo "setup: '$python -m venv' failed; on Debian and Ubuntu: apt-get install python3-venv" >&2
    exit 1
  }
fi
rm -f $stamp
$venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
$venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
# As pip does for a wheel: an editable install would be compiled by each process where bytecode is not written.
$venv/bin/python -m compileall -q overlap_train
if ! built=$($venv/bin/python -m overlap_train.cli build 2>&1); then
  echo "setup: convolutions stay TensorFlow's: $(grep mend <<< "$built" | head -n 1)"
fi
echo "$wanted" > $stamp
echo "setup: done"
