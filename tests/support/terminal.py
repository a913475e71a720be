"""What a terminal shows."""

from __future__ import annotations

import re


def screen(text: str) -> list[str]:
    """Return the lines that a terminal shows at last; later text wins."""
    rows: dict[int, list[str]] = {}
    row = column = 0
    for token in re.findall(r"\x1b\[A|\x1b\[[0-9;?]*[a-zA-Z]|[^\x1b]", text):
        if token == "\n":
            row, column = row + 1, 0
        elif token == "\r":
            column = 0
        elif token == "\x1b[A":
            row -= 1
        elif not token.startswith("\x1b"):
            line = rows.setdefault(row, [])
            line.extend(" " * (column + 1 - len(line)))
            line[column], column = token, column + 1
    lines = ["".join(rows.get(number, [])).rstrip() for number in range(max(rows, default=0) + 1)]
    return [line for line in lines if line]
