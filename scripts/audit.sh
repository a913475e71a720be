#!/usr/bin/env bash
# Checks what the lock names: one version and hashes for each, installed as it came, no known vulnerability.
#   scripts/audit.sh                    looks vulnerabilities up with pip-audit, where it is installed
#   scripts/audit.sh --advisories PATH  without a network: from the OSV files of PyPI (a .zip or a folder)
# Says what could not be looked up, and ends with 3 then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
python=.venv/bin/python
$python scripts/supply.py check
if [ "${1:-}" = "--advisories" ]; then
  exec $python scripts/supply.py advisories "${2:?audit: name the file or folder of advisories}"
fi
if ! command -v pip-audit > /dev/null; then
  echo "audit: vulnerabilities were not looked up: pip-audit is not installed (pipx install pip-audit), and no" \
    "--advisories were given" >&2
  exit 3
fi
report=$(mktemp)
trap 'rm -f "$report"' EXIT
pip-audit --disable-pip --require-hashes --requirement requirements.lock --format json --progress-spinner off \
  > "$report" || true  # what it found is in the report
$python scripts/supply.py report "$report"
