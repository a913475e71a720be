#!/usr/bin/env bash
# Trains with each library that uses Keras, once as it is and once overlapped, and compares the numbers.
#   scripts/clients.sh               all of them
#   scripts/clients.sh wandb mlflow  these
# They are installed into .clients/venv, the extra `clients` of setup.cfg at the versions of requirements.lock
# where these agree; a second call reuses it. What cannot be installed is named and skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.clients/venv
stamp=.clients/installed
wanted=$(cat requirements.lock setup.cfg "${BASH_SOURCE[0]##*/}" 2>/dev/null | sha256sum | cut -d' ' -f1)

install() {
  mkdir -p .clients
  # Without the hashes: with them pip would ask for one of each package, and the lock does not know them all.
  sed -nE 's/^([A-Za-z0-9_.-]+==[^\\]*[^ \\]) *\\?$/\1/p' requirements.lock > .clients/constraints.txt
  "$python" - > .clients/wanted.txt << 'PYTHON'
import configparser

options = configparser.ConfigParser(interpolation=None)
options.read("setup.cfg")
print(options["options"]["install_requires"].strip())
print(options["options.extras_require"]["clients"].strip())
PYTHON
  pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c .clients/constraints.txt)
  "${pip[@]}" -r .clients/wanted.txt && return
  echo "clients: they do not go together; installing one by one"
  while read -r requirement; do
    "${pip[@]}" "$requirement" || echo "clients: $requirement cannot be installed"
  done < .clients/wanted.txt
}

if [ "$(cat $stamp 2>/dev/null)" != "$wanted" ]; then
  scripts/setup.sh
  python=.venv/bin/python
  echo "clients: installing into $venv (first time: a few minutes, 5 GB)"
  [ -x $venv/bin/python ] || "$python" -m venv $venv
  install
  echo "$wanted" > $stamp
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" exec $venv/bin/python -m scripts.clients "$@"
