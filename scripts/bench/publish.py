"""What a comparison found: shown as tables, or as a dated page of docs/results with a row of its index.

A second page of the same day and series is numbered. The index has a row for each series: its question and
its newest page. The page before that moves to docs/results/archive, which the site and its search leave out.
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
_HEAD = ("| question | page |", "|---|---|")
_LINK = re.compile(r"\[[^\]]*\]\((\d{4}-\d{2}-\d{2})-([a-z]+(?:-[a-z]+)*)(?:-\d+)?\.md\)")
_RELATIVE = re.compile(r"(?<=\]\()(?!\w+:|#|/)")
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


def layout(cells: Cells) -> str:
    """Returns the table as lines for a terminal, the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(cells.head, *cells.body, strict=True)]
    lines = [cells.head, tuple("─" * width for width in widths), *cells.body]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in lines
    )


def markdown(cells: Cells) -> str:
    """Returns the table in Markdown, the first column to the left and the others to the right."""
    lines = [cells.head, ("---", *["---:"] * (len(cells.head) - 1)), *cells.body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def publish(
    finding: Finding,
    *,
    series: str,
    command: str,
    machine: Mapping[str, Any],
    others: str,
    folder: Path | None = None,
) -> Path:
    """Writes page, JSON and the row of the index, and archives the page before; returns the page's file.

    The date is that of `machine`, when the comparison began; `others` says what else ran meanwhile.
    """
    folder = folder or RESULTS
    date = datetime.date.fromisoformat(str(machine["date"])[:10])
    name = _free_name(folder, f"{date.isoformat()}-{series}")
    data = folder / "data" / f"{name}.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": dict(machine), "command": command, "others": others, "found": finding.data}
    data.write_text(_placeless(json.dumps(content, separators=(",", ":"))) + "\n", encoding="utf-8")
    parts = [
        f"# {finding.title}, {_shown(date)}",
        finding.words,
        f"```sh\n{command}\n```",
        f"{machines.one_line(dict(machine))}. {others}",
        *(f"## {title}\n\n{markdown(cells)}" for title, cells in finding.tables),
        f"Every run: [JSON](data/{data.name}).",
    ]
    page = folder / f"{name}.md"
    page.write_text(_placeless("\n\n".join(parts)) + "\n", encoding="utf-8")
    index = folder / "index.md"
    entered, before = enter(index.read_text(encoding="utf-8"), page.name, finding.question)
    index.write_text(entered, encoding="utf-8")
    if before is not None:
        _archive(folder / before)
    return page


def enter(index: str, file: str, question: str) -> tuple[str, str | None]:
    """Returns the index with a page entered, its series first, and the page that was there before."""
    lines = index.split("\n")
    if _HEAD[0] not in lines:
        raise ValueError(f"the index of results has no line {_HEAD[0]!r}")
    begin = lines.index(_HEAD[0]) + len(_HEAD)
    link = re.fullmatch(_LINK, f"[]({file})")
    if link is None:
        raise ValueError(f"{file} is not called after a date and a series")
    shown = f"[{_shown(datetime.date.fromisoformat(link[1]))}]({file})"
    before = None
    for number in range(begin, len(lines)):
        if not lines[number].startswith("|"):
            break
        older = _LINK.search(lines[number])
        if older is not None and older[2] == link[2]:
            question = lines[number].strip("|").split("|")[0].strip()
            before = older[0].partition("(")[2].removesuffix(")")
            del lines[number]
            break
    lines.insert(begin, f"| {question} | {shown} |")
    return "\n".join(lines), before


def _archive(page: Path) -> None:
    """Moves a page into the archive; its links still lead where they led."""
    archive = page.parent / "archive"
    archive.mkdir(exist_ok=True)
    text = _RELATIVE.sub("../", page.read_text(encoding="utf-8"))
    (archive / page.name).write_text(text, encoding="utf-8")
    page.unlink()


def _free_name(folder: Path, name: str) -> str:
    number = 1
    found = name
    while (folder / f"{found}.md").exists():
        number += 1
        found = f"{name}-{number}"
    return found


def _placeless(text: str) -> str:
    return _PLACE.sub("…", text)


def _shown(date: datetime.date) -> str:
    return f"{date.day} {date:%B} {date.year}"
