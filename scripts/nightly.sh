#!/usr/bin/env bash
# The long forms of the differential tests: 200 random runs against keras.Model.fit, and others.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTEST_MARKS=nightly exec scripts/test.sh "$@"
