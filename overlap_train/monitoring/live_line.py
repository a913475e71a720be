"""The one line on a terminal that is drawn again and again, and a stream that may break under it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from tqdm import tqdm

from overlap_train._support.printing import is_watched, printable

__all__ = ["LiveLine", "TolerantStream", "is_terminal"]

_BAR_WIDTH = 20
_SEPARATOR = ", "


class TolerantStream:
    """Passes text on until the stream breaks or is closed, and is silent from then on.

    A lost terminal or a closed pipe must not end hours of training, nor a letter that the stream's
    encoding has not: it is written as a number.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream: Any = stream
        self._broken = stream is None  # as standard output is where who started the process has closed it

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
        except ValueError:  # what a closed file raises, but an odd stream may do too
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
    except Exception:  # what a program has put there says that it is a terminal and has no descriptor of one
        return True


class LiveLine:
    """A tqdm bar with text next to it, cut to the width of the terminal.

    It appears with the first `draw`. All methods belong to one thread.
    """

    def __init__(self, stream: TolerantStream) -> None:
        self._stream = stream
        self._bar: _Bar | None = None

    def draw(self, head: str, step: int, steps: int | None, tail: Sequence[str]) -> None:
        """Draw the line; of `tail`, the most important first, what does not fit is left out."""
        if self._bar is None:
            self._bar = _Bar(file=self._stream, dynamic_ncols=True, leave=False, bar_format="{desc}")
        bar = self._bar
        counted = f"{step}/{steps}" if steps else f"{step} steps"
        fixed = len(head) + 3 + _BAR_WIDTH + 2 + len(counted)
        bar.bar_format = f"{{desc}} |{{bar:{_BAR_WIDTH}}}| {counted}{{postfix}}"
        bar.total, bar.n = steps, step
        bar.set_description_str(head, refresh=False)
        bar.set_postfix_str(
            _fitting(tail, bar.ncols - fixed) if bar.ncols else _SEPARATOR.join(tail), refresh=False
        )
        bar.refresh()

    def say(self, text: str) -> None:
        """Write a line that stays above this one, and above other tqdm bars on the terminal."""
        _Bar.write(text, file=self._stream)

    def close(self) -> None:
        """Take the line away for good; does nothing the second time."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class _Bar(tqdm):  # type: ignore[misc]  # tqdm is not typed
    """A tqdm that leaves nothing behind in the process."""

    monitor_interval = 0  # else tqdm starts a thread that outlives the bar
    _lock = threading.RLock()  # else tqdm makes a lock between processes as well


def _fitting(parts: Sequence[str], room: int) -> str:
    """Join the first parts that fit into `room` characters, the separator before each counted."""
    fitting: list[str] = []
    for part in parts:
        room -= len(_SEPARATOR) + len(part)
        if room < 0:
            break
        fitting.append(part)
    return _SEPARATOR.join(fitting)
