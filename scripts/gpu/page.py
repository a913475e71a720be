"""The page that the stages' records make, and its parts.

Made from whatever is there, so that it can be written after every stage, and after a run that was cut off. A
page of emulated stages says so in its title, in every heading and under every table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu.record import Record, write_atomically

__all__ = ["EMULATED", "Row", "Section", "page", "table", "wrong_rows"]

Row = dict[str, Any]
EMULATED = "Emulated: a CPU stood in for the GPU, and NumPy for its libraries. This says nothing about a GPU."


@dataclass(frozen=True)
class Section:
    """One stage on the page: its name, its heading, and what makes the body from the rows."""

    stage: str
    title: str
    text: Callable[[list[Row]], str]
    again: tuple[str, ...] = ()  # stages that repeat it, whose rows follow


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats are shown with three digits."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def wrong_rows(rows: list[Row]) -> str:
    """Return what is to be added where a row is wrong."""
    found = [f"- {row['key']}: {'; '.join(row['wrong'])}" for row in rows if row.get("wrong")]
    return "\n\n**Wrong:**\n\n" + "\n".join(found) if found else ""


def page(
    path: Path,
    title: str,
    command: str,
    *,
    emulated: bool,
    sections: Sequence[Section],
    record: Callable[[str], Record],
    facts: Mapping[str, str],
) -> None:
    """Write what is known now."""
    parts = [f"# {'Emulated: ' if emulated else ''}{title}", f"Made by `{command}`."]
    if emulated:
        parts.append(f"**{EMULATED}**")
    parts.append(table(("machine", ""), list(facts.items())))
    for section in sections:
        found = [record(name) for name in (section.stage, *section.again)]
        states = dict.fromkeys(map(_state, found))  # without those that say the same
        parts += [f"## {section.title}{' (emulated)' if emulated else ''}", *states]
        rows = [row for each in found for row in each.rows]
        if rows:
            parts += [section.text(rows), f"*{EMULATED}*" if emulated else ""]
    write_atomically(path, ("\n\n".join(filter(None, parts)) + "\n").encode())


def _cell(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")


def _state(record: Record) -> str:
    found = f"{len(record.rows)} rows"
    if record.status is None:
        return f"Cut off after {found}; run the command again." if record.rows else "Not run yet."
    if record.status == "done":
        return ""
    words = {
        "partial": f"Out of time after {found}; run the command again",
        "unavailable": "Not possible here",
    }
    return f"{words.get(record.status, 'Failed')}: {record.reason}".rstrip(": ") + "."
