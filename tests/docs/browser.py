"""Pages in headless Chromium, without a driver: look.html holds a page in a frame and reports on it."""

from __future__ import annotations

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
_PIXEL = b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass(frozen=True)
class Seen:
    """What was seen of a page.

    Attributes:
        console: the lines that it wrote to the console: errors, warnings, files that could not be fetched.
        found: what look.html reports.
        screenshot: a PNG of the page.
    """

    console: list[str]
    found: dict[str, Any]
    screenshot: Path


class Browser:
    """Looks at the pages of a site, one at a time. From one thread.

    Args:
        site: the folder of the site.
        folder: for screenshots and the browser's profile.
    """

    def __init__(self, site: Path, folder: Path) -> None:
        self._folder = folder
        self._reported = threading.Event()
        self._found: dict[str, Any] = {}
        handler = partial(_Handler, self, directory=str(site))
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
        self._reported.clear()
        name = re.sub(r"\W+", "_", page)
        screenshot = self._folder / f"{name}-{width}-{'dark' if dark else 'light'}.png"
        host = f"http://127.0.0.1:{self._server.server_port}"
        command = [
            find_browser() or _NAMES[0],
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={self._folder / 'profile'}",
            f"--window-size={max(width, 500)},{_HEIGHT}",  # no window is narrower; the frame in it is
            f"--screenshot={screenshot}",
            f"{host}/{_LOOK.name}?{urlencode({'page': page, 'width': width, 'height': _HEIGHT})}",
        ]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_MOST_S + 20)
        assert self._reported.is_set(), f"{page} was not loaded:\n{ran.stderr[-2000:]}"
        return Seen([line for line in ran.stderr.splitlines() if "CONSOLE" in line], self._found, screenshot)

    def report(self, found: dict[str, Any]) -> None:
        """Take what look.html has found. From a thread of the server."""
        self._found = found
        self._reported.set()

    def wait(self) -> None:
        """Wait until look.html has reported. From a thread of the server."""
        self._reported.wait(_MOST_S)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, browser: Browser, *arguments: Any, **options: Any) -> None:
        self._browser = browser
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == f"/{_LOOK.name}":
            self._answer("text/html", _LOOK.read_bytes())
        elif path == "/reported.svg":
            # A picture of look.html: the screenshot is taken when it has come.
            self._browser.wait()
            self._answer("image/svg+xml", _PIXEL)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self._browser.report(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer("text/plain", b"")

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Does nothing."""
