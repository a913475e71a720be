#!/usr/bin/env bash
# Lints code and prose, checks the formats and the types.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/clang-format --dry-run -Werror overlap_train/conv/native/*.{h,cc,cu}
.venv/bin/python -m mypy
.venv/bin/python scripts/prose.py
