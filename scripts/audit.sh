#!/usr/bin/env bash
# Checks what the lock names: that it is what is installed, and that no vulnerability of it is known.
#   scripts/audit.sh                 ends with 3 where vulnerabilities could not be looked up
#   scripts/audit.sh --sbom FILE     writes the bill of materials first (CycloneDX)
# Its tools are installed into .audit, an environment of their own; the lock is for what trains and tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=(pip-audit==2.10.1 cyclonedx-bom==7.5.0)
scripts/setup.sh
python=.venv/bin/python
missing=$("$python" -m pip install --quiet --disable-pip-version-check --dry-run --no-deps --require-hashes \
  --report - -r requirements.lock | "$python" -c 'import json, sys
print(*(one["metadata"]["name"] for one in json.load(sys.stdin)["install"]))')
if [ -n "$missing" ]; then
  echo "audit: not installed as the lock says: $missing" >&2
  exit 1
fi
"$python" -m pip check
if ! { [ -x .audit/bin/python ] || "$python" -m venv .audit; } ||
  ! .audit/bin/python -m pip install --quiet --disable-pip-version-check "${tools[@]}"; then
  echo "audit: vulnerabilities were not looked up: ${tools[*]} cannot be installed here" >&2
  exit 3
fi
if [ "${1:-}" = "--sbom" ]; then
  .audit/bin/cyclonedx-py requirements requirements.lock --output-reproducible --output-format JSON \
    --output-file "${2:?audit: name the file}"
fi
report=$(mktemp)
trap 'rm -f "$report"' EXIT
if .audit/bin/pip-audit --disable-pip --require-hashes --strict --requirement requirements.lock \
  --progress-spinner off --output "$report"; then
  exit 0
fi
[ -s "$report" ] || exit 3  # it has said why it could not look
cat "$report" >&2
exit 1
