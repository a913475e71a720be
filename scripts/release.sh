#!/usr/bin/env bash
# Builds what a release consists of into dist/, checks it in a fresh environment, and prints what is left to do.
# Publishes nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh
python=$PWD/.venv/bin/python
version=$("$python" -c 'from overlap_train._support.version import __version__; print(__version__)')
if [ -n "$(git status --porcelain)" ]; then
  echo "release: there are changes that no commit holds; commit them first" >&2
  exit 1
fi
if ! grep -q "^## $version" CHANGELOG.md; then
  echo "release: CHANGELOG.md has no section for $version" >&2
  exit 1
fi
# 3: vulnerabilities could not be looked up here, which the person who releases has to do elsewhere.
audited=0
bill=$(mktemp)
trap 'rm -f "$bill"' EXIT
scripts/audit.sh --sbom "$bill" || audited=$?
if [ "$audited" -ne 0 ] && [ "$audited" -ne 3 ]; then
  exit "$audited"
fi
rm -rf dist
"$python" -c "from setuptools.build_meta import build_sdist; print(build_sdist('dist'))" > /dev/null
scripts/wheel.sh
scripts/wheel.sh --pure > /dev/null
if [ -s "$bill" ]; then cp "$bill" "dist/overlap_train-$version.cdx.json"; fi
# In an environment of its own: the lock is for what trains and tests.
checked=1
tools=$(mktemp -d)
trap 'rm -rf "$bill" "$tools"' EXIT
if "$python" -m venv "$tools" && "$tools/bin/python" -m pip install --quiet --disable-pip-version-check twine; then
  "$tools/bin/python" -m twine check --strict dist/*.whl dist/*.tar.gz
else
  checked=0
  echo "release: twine cannot be installed here, so the metadata is not checked" >&2
fi
scripts/test.sh tests/test_wheel.py tests/conv/test_library.py
(cd dist && sha256sum -- * > SHA256SUMS)
left=()
[ "$checked" -eq 1 ] || left+=("twine check --strict dist/*.whl dist/*.tar.gz, where twine can be installed")
[ "$audited" -eq 0 ] || left+=("scripts/audit.sh, where pip-audit and its service can be reached")
[ -n "${REPOSITORY_URL:-}" ] || left+=("REPOSITORY_URL=https://HOST/OWNER/NAME scripts/release.sh: without it the description has no links")
[ -s "$bill" ] || left+=("scripts/audit.sh --sbom dist/overlap_train-$version.cdx.json, where it can be made")
left+=(
  "git tag -s v$version -m 'overlap_train $version' && git push origin v$version"
  "twine upload dist/*-none-any.whl dist/*.tar.gz"
  "the other wheel holds the compiled convolution, and PyPI takes none that is bound to TensorFlow's library:"
  "  it goes to the page of the release, with SHA256SUMS and the bill of materials"
)
echo "release: dist/ holds $version:"
ls -1 dist
echo "What is left:"
printf '  %s\n' "${left[@]}"
