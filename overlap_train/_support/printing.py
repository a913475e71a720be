"""What others print and print on: streams that lack characters, errors that say nothing. Any thread."""

from __future__ import annotations

from typing import Any

__all__ = ["error_message", "error_text", "is_watched", "printable"]


def is_watched(stream: Any) -> bool:
    """Whether a stream says that it is a terminal; one that cannot tell, such as a logger's, is none."""
    try:
        return bool(stream.isatty())
    except Exception:  # whatever an object of others raises, nobody reads it as a terminal
        return False


def printable(text: str, stream: Any) -> str:
    """Return a text as a stream can write it: what its encoding has not is written as a number.

    A name may have letters that the terminal lacks, and a path bytes that are no text. A stream that names no
    encoding is taken for UTF-8.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def error_message(error: BaseException) -> str:
    """Return what an error says, also of one that cannot be printed."""
    try:
        return str(error)
    except Exception:
        return "it cannot be printed"


def is_number(value: Any) -> bool:
    """Return whether `float` takes a value."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def error_text(error: BaseException) -> str:
    """Return the class of an error and what it says."""
    return f"{type(error).__name__}: {error_message(error)}"
