"""What a comparison found: shown as tables, or as a dated page of docs/results.

A second page of the same day and series takes the place of the first. Its row of the index is added by hand.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench import machine as machines

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
# A folder of the machine, such as a home or a temporary one, does not belong on a page.
_PLACE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|mnt|srv|var|Users|private)\b[^\s\"',;:)]*")


@dataclass(frozen=True)
class Cells:
    """A table of text: `body` rows as wide as `head`; the first column is a name, the others figures."""

    head: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Finding:
    """What a page shows."""

    question: str  # the row of the index
    title: str  # without its date
    words: str  # the paragraphs above the tables, in Markdown
    tables: Sequence[tuple[str, Cells]]  # each with its heading
    data: Any  # everything, as JSON values; it lies next to the page


def markdown(cells: Cells) -> str:
    """Returns the table in Markdown, the first column to the left and the others to the right."""
    rows = [tuple(cell.replace("|", "&#124;") for cell in line) for line in (cells.head, *cells.body)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    rule = ("-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:]))
    shown = [(line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])) for line in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in (shown[0], rule, *shown[1:]))


def publish(
    finding: Finding,
    *,
    series: str,
    command: str,
    machine: Mapping[str, Any],
    others: str,
    folder: Path | None = None,
) -> Path:
    """Writes the page and its JSON; returns the page's file.

    The date is that of `machine`, when the comparison began; `others` says what else ran meanwhile.
    """
    folder = folder or RESULTS
    date = datetime.date.fromisoformat(str(machine["date"])[:10])
    name = f"{date.isoformat()}-{series}"
    data = folder / "data" / f"{name}.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": dict(machine), "command": command, "others": others, "found": finding.data}
    data.write_text(_placeless(json.dumps(content, separators=(",", ":"))) + "\n", encoding="utf-8")
    parts = [
        f"# {finding.title}, {date.day} {date:%B} {date.year}",
        finding.words,
        f"```sh\n{command}\n```",
        f"{machines.one_line(dict(machine))}. {others}",
        *(f"## {title}\n\n{markdown(cells)}" for title, cells in finding.tables),
        f"Every run: [JSON](data/{data.name}).",
    ]
    page = folder / f"{name}.md"
    page.write_text(_placeless("\n\n".join(parts)) + "\n", encoding="utf-8")
    return page


def _placeless(text: str) -> str:
    return _PLACE.sub("…", text)
