"""Pages in headless Chromium, without a driver: look.html holds a page in a frame and says what it finds."""

from __future__ import annotations

import html
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_LOOK = Path(__file__).with_name("look.html")
_MOST_S = 60.0
_HEIGHT = 1200


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Seen:
    """What was seen of a page.

    Attributes:
        console: the lines that it wrote to the console: errors, warnings, files that could not be fetched.
        found: what look.html reports.
    """

    console: list[str]
    found: dict[str, Any]


class _Handler(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return str(_LOOK) if path.startswith(f"/{_LOOK.name}") else super().translate_path(path)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Does nothing."""


class Browser:
    """Looks at the pages of a site, one at a time."""

    def __init__(self, site: Path, folder: Path) -> None:
        self._folder = folder  # for the browser's profile
        handler = partial(_Handler, directory=str(site))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    @contextmanager
    def serving(self) -> Iterator[Browser]:
        """Serve the site on this machine alone, until the context is left."""
        thread = threading.Thread(target=self._server.serve_forever, name="site")
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def look(self, page: str, *, width: int = 1280, dark: bool = False) -> Seen:
        """Return what Chromium shows of a page; it knows the address of no other machine.

        Raises:
            AssertionError: the page has not been loaded.
            subprocess.TimeoutExpired: Chromium hangs.
        """
        host = f"http://127.0.0.1:{self._server.server_port}"
        command = [
            find_browser() or _NAMES[0],
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={self._folder / 'profile'}",
            f"--window-size={max(width, 500)},{_HEIGHT}",  # no window is narrower; the frame in it is
            *("--virtual-time-budget=5000", "--dump-dom"),
            f"{host}/{_LOOK.name}?{urlencode({'page': page, 'width': width, 'height': _HEIGHT})}",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MOST_S)
        found = re.search(r"<pre>(.*?)</pre>", ran.stdout, re.S)
        assert found, f"{page} was not loaded:\n{ran.stderr[-2000:]}"
        console = [line for line in ran.stderr.splitlines() if "CONSOLE" in line]
        return Seen(console, json.loads(html.unescape(found[1])))
