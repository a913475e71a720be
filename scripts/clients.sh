#!/usr/bin/env bash
# Trains with each library that uses Keras, once as it is and once overlapped, and compares the numbers.
#   scripts/clients.sh                             all of them
#   scripts/clients.sh wandb_logger mlflow_autolog  these, by the names of the files in scripts/clients
# They are installed into .clients/venv, the extra `clients` of setup.cfg with the TensorFlow and Keras of
# requirements.lock; a second call reuses it. What cannot be installed is named and skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.clients/venv
stamp=.clients/installed
wanted=$(cat requirements.lock setup.cfg scripts/clients.sh | sha256sum | cut -d' ' -f1)

install() {
  mkdir -p .clients
  # Not the other versions of the lock: MLflow and BayesFlow would be years old with them.
  sed -nE 's/^((tensorflow|keras)==[^\\]*[^ \\]) *\\?$/\1/p' requirements.lock > .clients/constraints.txt
  "$python" - > .clients/wanted.txt << 'PYTHON'
import configparser

options = configparser.ConfigParser(interpolation=None)
options.read("setup.cfg")
print(options["options"]["install_requires"].strip())
extras = options["options.extras_require"]
print(extras["clients"].replace("%(tensorboard)s", extras["tensorboard"].strip()).strip())
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
  [ -x $venv/bin/python ] || "$python" -m venv $venv
  install
  echo "$wanted" > $stamp
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec $venv/bin/python -m scripts.clients "$@"
