"""The site, built once for all tests and all processes of a run."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.browser import Browser, find_browser
from tests.docs.pages import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """The folder of the built site. Skips where the extra `docs` is not installed."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        if module not in sys.modules and not _is_installed(module):
            pytest.skip(f'needs {module}: pip install -e ".[docs]"')
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    built = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (built / "objects.inv").exists():
            _build(built)
    return built


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _build(built: Path) -> None:
    # Nothing outside this machine can be reached through a proxy that does not exist.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.fixture(scope="module")
def browser(site, tmp_path_factory):
    """A browser that looks at the site. Skips where no Chromium is installed."""
    if find_browser() is None:
        pytest.skip("needs Chromium: chromium, chromium-browser or google-chrome on the PATH")
    with Browser(site, tmp_path_factory.mktemp("browser")).serving() as browser:
        yield browser
