"""Printing for streams that lack characters, for notebooks, and of errors. Any thread."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any


def is_watched(stream: Any) -> bool:
    """Whether a stream is a terminal; one that cannot tell, such as a logger's, is none."""
    try:
        return bool(stream.isatty())
    except Exception:  # of any other object
        return False


def printable(text: str, stream: Any) -> str:
    """Return a text as a stream can write it, with escapes for characters that its encoding lacks.

    A path may have bytes that are no text. The default encoding is UTF-8.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def error_message(error: BaseException) -> str:
    """Return the message of an error, even of one that cannot be printed."""
    try:
        return str(error)
    except Exception:
        return "it cannot be printed"


def is_number(value: Any) -> bool:
    """Whether `float` takes a value."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def error_text(error: BaseException) -> str:
    """Return the class of an error and its message."""
    return f"{type(error).__name__}: {error_message(error)}"


def html_table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows of text as a table for a notebook."""

    def row(tag: str, cells: Sequence[str]) -> str:
        style = ' style="text-align: left; white-space: pre-wrap"'
        return "<tr>" + "".join(f"<{tag}{style}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head = [row("th", heading)] if heading else []
    return f"<table>{''.join([*head, *(row('td', cells) for cells in rows)])}</table>"
