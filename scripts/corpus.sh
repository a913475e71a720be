#!/usr/bin/env bash
# Runs `overlap-train verify` over the programs of a folder, several at once, and prints a table; ends with status 1 if
# one has other results than by Keras, or cannot be told: scripts/corpus.sh FOLDER [--jobs N] [--epochs N]
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
"$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/scripts/corpus.py" "$@"
