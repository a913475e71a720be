#!/usr/bin/env bash
# Trains with each library that uses Keras, once as it is and once overlapped, and compares the numbers.
#   scripts/clients.sh                             all of them, then the tests that need such libraries
#   scripts/clients.sh wandb_logger mlflow_autolog  these, by their names in scripts/clients/programs.py
# They are installed into .clients/venv, the extras `clients` and `ray` of setup.cfg with the TensorFlow, Keras and
# pytest of requirements.lock; a second call reuses it. What cannot be installed is named and skipped; then the exit
# status is 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.clients/venv
stamp=.clients/installed
# Elsewhere these are skipped: .venv holds neither Hugging Face's datasets nor Grain, pandas or Ray.
tests=(
  tests/data/test_validation_batches.py
  tests/data/test_pipeline_sources.py
  tests/parallel/test_launchers.py
  tests/parallel/test_official.py
  tests/test_errors.py
  tests/test_kill.py::test_killed_on_data_that_is_no_array_the_result_is_that_of_the_unbroken_run
  tests/whole_fits/test_frames.py
  tests/whole_fits/test_library_sources.py
)
wanted=$(cat requirements.lock setup.cfg scripts/clients.sh | sha256sum | cut -d' ' -f1)

install() {
  mkdir -p .clients
  # Not the other versions of the lock: MLflow and BayesFlow would be years old with them.
  sed -nE 's/^((tensorflow|keras|pytest|pytest-timeout|hypothesis)==[^\\]*[^ \\]) *\\?$/\1/p' requirements.lock \
    > .clients/constraints.txt
  "$python" - > .clients/wanted.txt << 'PYTHON'
import configparser

options = configparser.ConfigParser(interpolation=None)
options.read("setup.cfg")
print(options["options"]["install_requires"].strip())
extras = options["options.extras_require"]
clients = extras["clients"]
for name in ("plots", "tensorboard"):
    clients = clients.replace(f"%({name})s", extras[name].strip())
print(clients.strip())
print(extras["ray"].strip())
print("pytest\npytest-timeout\nhypothesis")
PYTHON
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c .clients/constraints.txt)
  "${pip[@]}" -r .clients/wanted.txt && return
  echo "clients: they do not go together; installing one by one"
  while read -r requirement; do
    "${pip[@]}" "$requirement" || echo "clients: $requirement cannot be installed"
  done < .clients/wanted.txt
}

if [ "$(cat $stamp 2>/dev/null)" != "$wanted" ]; then
  [ -x .venv/bin/python ] || scripts/setup.sh
  python=.venv/bin/python
  echo "clients: installing into $venv (first time: a few minutes, 5 GB)"
  [ -e $stamp ] || rm -rf $venv  # of an installation that was cut off, half of a package may be there
  rm -f $stamp
  [ -x $venv/bin/python ] || "$python" -m venv $venv
  install
  echo "$wanted" > $stamp
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"
status=0
$venv/bin/python -m scripts.clients "$@" || status=$?
if [ $# -eq 0 ]; then
  CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" $venv/bin/python -m pytest -q -m "not nightly" "${tests[@]}" ||
    status=$?
fi
exit "$status"
