#!/usr/bin/env bash
# Runs the default tests and prints which statements and branches of the core they leave out; ends with status 2 below
# the threshold in setup.cfg. Arguments go to pytest, and then there is no threshold: scripts/coverage.sh tests/fit
# What it leaves in .coverage and .coverage_times, which test runs which lines, is for scripts/mutation.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
.venv/bin/python -m pip install --quiet --disable-pip-version-check --target .coverage_packages 'coverage>=7.10,<8'
# Processes that tests start, pytest's workers first, measure themselves.
echo 'import coverage; coverage.process_startup()' > .coverage_packages/sitecustomize.py
export COVERAGE_PROCESS_START="$PWD/setup.cfg"
export PYTHONPATH="$PWD/.coverage_packages${PYTHONPATH:+:$PYTHONPATH}"
export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES-}" TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}" MPLBACKEND=Agg
coverage=(.venv/bin/python -m coverage)
threshold=()
if [ $# -gt 0 ]; then threshold=(--fail-under=0); else set -- --numprocesses=2 --dist=worksteal; fi
"${coverage[@]}" erase
rm -f .coverage_times
status=0
"${coverage[@]}" run -m pytest -q -p scripts.mutation -m "not nightly and not kill" "$@" || status=$?
"${coverage[@]}" combine --quiet
"${coverage[@]}" report --skip-covered --show-missing "${threshold[@]}" || status=$?
exit "$status"
