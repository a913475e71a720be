#!/usr/bin/env bash
# Builds the site into build/site. Strictly: what mkdocs warns of, such as a broken link, is an error. Without a network.
#   scripts/docs.sh                build it; further arguments go to mkdocs build
#   scripts/docs.sh serve [PORT]   build it, and serve it on this machine alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
export NO_MKDOCS_2_WARNING=1
build=(.venv/bin/python -m mkdocs build --strict --clean)
if [ "${1:-}" = serve ]; then
  "${build[@]}"
  exec .venv/bin/python -m http.server --bind 127.0.0.1 --directory build/site "${2:-8000}"
fi
"${build[@]}" "$@"
