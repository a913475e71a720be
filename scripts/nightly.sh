#!/usr/bin/env bash
# Runs the long forms of the tests: 300 random runs against keras.Model.fit, Keras's own suite, the libraries that use
# Keras, and others.
#   scripts/nightly.sh                  all of it; arguments go to pytest instead: scripts/nightly.sh tests/parallel
#   scripts/nightly.sh --keras-nightly  the comparisons with Keras and Keras's own suite, on its newest nightly build
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = "--keras-nightly" ]; then
  shift
  scripts/setup.sh
  rm -rf .keras_nightly
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --pre \
    --target .keras_nightly keras-nightly
  PYTHONPATH="$PWD/.keras_nightly${PYTHONPATH:+:$PYTHONPATH}" .venv/bin/python -c \
    'import keras; print("Keras", keras.__version__)'
  export PYTHONPATH="$PWD/.keras_nightly${PYTHONPATH:+:$PYTHONPATH}" PYTEST_MARKS="not nightly and not kill"
  if [ $# -gt 0 ]; then
    exec scripts/test.sh "$@"
  fi
  status=0
  scripts/test.sh tests/test_parity.py tests/whole_fits/test_contract.py \
    tests/whole_fits/test_late_hooks.py tests/test_real_code.py tests/test_differential.py tests/keras || status=$?
  scripts/keras_suite.sh || status=$?
  exit "$status"
fi
status=0  # of what failed last: the rest of the night is not lost with it
if [ $# -eq 0 ]; then
  # Every fit in calls of one step, validated beside the next epoch: eight minutes on two cores.
  rooms=(callbacks checkpoint copies data fit inspection keras monitoring parallel training validation whole_fits)
  files=(bad_input differential no_leak parity real_code routing trainer)
  PYTEST_MARKS="not nightly and not kill" scripts/test.sh -p tests.stress --numprocesses=3 --dist=worksteal \
    "${rooms[@]/#/tests/}" $(printf 'tests/test_%s.py ' "${files[@]}") || status=$?
  scripts/keras_suite.sh || status=$?
  scripts/clients.sh || status=$?
fi
PYTEST_MARKS=nightly scripts/test.sh "$@" || status=$?
exit "$status"
