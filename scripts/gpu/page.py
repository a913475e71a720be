"""The page that the stages' records make, and its parts.

Made from whatever is there, so that it can be written after every stage, and after a run that was cut off. A
page of emulated stages says so in its title, in every heading and under every table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.gpu.record import Record, write_atomically

__all__ = ["Page", "Section", "table"]

Row = dict[str, Any]
EMULATED = "Emulated: a CPU stood in for the GPU, and NumPy for its libraries. This says nothing about a GPU."


@dataclass(frozen=True)
class Section:
    """One stage on the page.

    Attributes:
        stage: the name of the stage.
        title: its heading.
        text: makes the body from the rows.
    """

    stage: str
    title: str
    text: Callable[[list[Row]], str]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table; floats are shown with three digits."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines)


def _cell(value: object) -> str:
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text.replace("|", "/").replace("\n", " ")


class Page:
    """Writes the page.

    Args:
        path: the Markdown file.
        title: of the page, without a word about emulation.
        command: what made it.
        emulated: whether to say so everywhere.
        sections: in order.
        record: gives the record of a stage.
        facts: of the machine, by name.
    """

    def __init__(
        self,
        path: Path,
        title: str,
        command: str,
        *,
        emulated: bool,
        sections: Sequence[Section],
        record: Callable[[str], Record],
        facts: dict[str, str],
    ) -> None:
        self._path, self._title, self._command = path, title, command
        self._emulated, self._sections, self._record, self._facts = emulated, sections, record, facts

    def write(self, plots: Sequence[Path] = ()) -> None:
        """Write what is known now."""
        mark = "Emulated: " if self._emulated else ""
        parts = [f"# {mark}{self._title}", f"Made by `{self._command}`."]
        if self._emulated:
            parts.append(f"**{EMULATED}**")
        parts.append(table(("machine", ""), list(self._facts.items())))
        parts += [self._section(section) for section in self._sections]
        for plot in plots:
            name = plot.stem.replace("_", " ")
            label = f"{name}, emulated" if self._emulated else name
            parts.append(f"![{label}]({plot.relative_to(self._path.parent).as_posix()})")
        write_atomically(self._path, "\n\n".join(parts) + "\n")

    def _section(self, section: Section) -> str:
        record = self._record(section.stage)
        parts = [f"## {section.title}{' (emulated)' if self._emulated else ''}", self._state(record)]
        if record.rows:
            parts.append(section.text(record.rows))
            if self._emulated:
                parts.append(f"*{EMULATED}*")
        return "\n\n".join(part for part in parts if part)

    def _state(self, record: Record) -> str:
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
