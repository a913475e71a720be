"""Texts on streams that cannot write all characters. Any thread."""

from __future__ import annotations

from typing import Any

__all__ = ["printable"]


def printable(text: str, stream: Any) -> str:
    """Returns a text as a stream can write it: what its encoding has not is written as a number.

    A name may have letters that the terminal lacks, and a path bytes that are no text.

    Args:
        text: any.
        stream: a text stream; one that names no encoding is taken for UTF-8.
    """
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
