"""A line at the end of a terminal, a notebook's output or a file, which is drawn again and again.

Everything here belongs to one thread: no lock, no thread, and tqdm's own monitor thread stays off.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from tqdm import tqdm

from overlap_train._support.printing import is_watched, printable

BAR_WIDTH = 20
SEPARATOR = " - "


class TolerantStream:
    """Passes text on until the stream breaks or is closed, and is silent from then on.

    A lost terminal or a closed pipe must not end hours of training. Nor must a character that the stream's
    encoding lacks: it is written as a number.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self._broken = stream is None  # as is standard output if the parent process has closed it

    def write(self, text: str) -> int:
        """Write text, unless the stream has broken; returns its length."""
        self._attempt(self._write, text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it has broken."""
        if not self._broken:
            self._attempt(self._stream.flush)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return is_watched(self._stream)

    def in_notebook(self) -> bool:
        """Whether the stream is the output of a Jupyter kernel, such as that of Colab or VS Code."""
        return type(self._stream).__module__ == "ipykernel.iostream"

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(printable(text, self._stream))

    def _attempt(self, operation: Any, *args: str) -> None:
        if self._broken:
            return
        try:
            operation(*args)
        except OSError:
            self._broken = True
        except ValueError:  # of a closed file; any other stream's is an error
            if not getattr(self._stream, "closed", False):
                raise
            self._broken = True

    def __eq__(self, other: object) -> bool:
        """Equals the stream below: tqdm compares, to find the bars that share a terminal."""
        return self._stream == getattr(other, "_stream", other)

    def __hash__(self) -> int:
        return hash(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def is_terminal(stream: TextIO | TolerantStream) -> bool:
    """Tell whether a line can be drawn again and again on `stream`.

    A pseudo-terminal without a size, as containers and CI make them, is captured and not watched.
    """
    if os.environ.get("TERM") == "dumb" or not stream.isatty():
        return False
    try:
        return os.get_terminal_size(stream.fileno()).lines > 1
    except Exception:  # a console that is no file has no descriptor
        return True


def bar_of(stream: TolerantStream) -> str:
    """Return the characters of an empty and of a full place of a bar."""
    return "─━" if printable("─━", stream) == "─━" else ".="


class LiveLine:
    """A tqdm bar with text next to it: cut to the width of a terminal, or a widget in a notebook.

    It appears with the first `draw`. All methods belong to one thread.
    """

    def __init__(self, stream: TolerantStream) -> None:
        self._stream = stream
        self._is_widget = stream.in_notebook() and importlib.util.find_spec("ipywidgets") is not None
        self._class: Any = _widget_class() if self._is_widget else _Bar
        self._bar: Any = None

    def draw(self, head: str, step: int | None, steps: int | None, tail: Sequence[str]) -> None:
        """Draw the line; of `tail`, the most important first, what does not fit is left out.

        Without `step` there is text only, and without `steps` no bar.
        """
        if self._bar is None:
            options = {"ascii": bar_of(self._stream), "bar_format": " ", "leave": False}
            self._bar = self._class(file=self._stream, dynamic_ncols=not self._is_widget, **options)
        bar, place, parts = self._bar, "", [head]
        if step is not None:
            parts.append(f"{step}/{steps or 'Unknown'}")
            if steps:
                place = "{bar}" if self._is_widget else f"{{bar:{BAR_WIDTH}}}"
                if bar.total != steps or step < bar.n:  # another epoch
                    bar.reset(total=steps)
            bar.n = step
        taken = len(" ".join(parts)) + 1 + (BAR_WIDTH + 1 if place else 0)
        texts = _literal(" ".join(parts)), place, _literal(_fitting(tail, (bar.ncols or sys.maxsize) - taken))
        bar.bar_format = " ".join(filter(None, texts))
        bar.refresh()

    def say(self, text: str) -> None:
        """Write lines that stay above this one, and above other tqdm bars on the terminal."""
        self._class.write(text, file=self._stream)

    def close(self) -> None:
        """Take the line away for good; does nothing the second time."""
        if self._bar is not None:
            self._bar.total = None  # or a widget would stay, in red
            self._bar.close()
            self._bar = None


class _Bar(tqdm):  # type: ignore[misc]  # tqdm is not typed
    """A tqdm that leaves nothing behind in the process."""

    monitor_interval = 0  # else tqdm starts a thread that outlives the bar
    _lock = threading.RLock()  # else tqdm makes a lock between processes as well


def _widget_class() -> Any:
    from tqdm.notebook import tqdm_notebook

    return type("_Widget", (tqdm_notebook,), {"monitor_interval": 0, "_lock": _Bar._lock})


def _literal(text: str) -> str:
    """Return a text as part of a format."""
    return text.replace("{", "{{").replace("}", "}}")


def _fitting(parts: Sequence[str], room: int) -> str:
    """Join the first parts that fit into `room` characters."""
    text = ""
    for part in parts:
        longer = f"{text}{SEPARATOR}{part}" if text else part
        if len(longer) > room:
            break
        text = longer
    return text
