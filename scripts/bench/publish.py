"""Writes what a comparison found as a dated page of docs/results, and enters it in the index.

A page is not changed later. A second one of the same day and series is numbered. The index has a row for
each series: its question, its newest page, and the pages before that.
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench import machine as machines
from scripts.bench.table import Cells, markdown

__all__ = ["RESULTS", "Finding", "enter", "publish"]

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
_HEAD = ("| question | newest | earlier |", "|---|---|---|")
_LINK = re.compile(r"\[[^\]]*\]\((\d{4}-\d{2}-\d{2})-([a-z]+(?:-[a-z]+)*)(?:-\d+)?\.md\)")
# A folder of the machine, such as a home or a temporary one, does not belong on a page.
_PLACE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|mnt|srv|var|Users|private)\b[^\s\"',;:)]*")


@dataclass(frozen=True)
class Finding:
    """What a page shows.

    Attributes:
        series: words of small letters with hyphens; pages of one series answer one question.
        question: the row of the index.
        title: of the page, without its date.
        words: the paragraphs above the tables, in Markdown.
        command: as it was typed.
        tables: each with its heading.
        pictures: SVG files by title.
        data: everything, as JSON values; it lies next to the page.
    """

    series: str
    question: str
    title: str
    words: str
    command: str
    tables: Sequence[tuple[str, Cells]]
    pictures: Mapping[str, Path] = field(default_factory=dict)
    data: Any = None


def publish(finding: Finding, machine: Mapping[str, Any], others: str, *, folder: Path = RESULTS) -> Path:
    """Writes page, pictures, JSON and the row of the index; returns the page's file.

    Args:
        finding: what was found.
        machine: of `machine.describe`, when the comparison began; its date is the page's.
        others: a sentence about what else ran on the machine.
        folder: docs/results.
    """
    date = datetime.date.fromisoformat(str(machine["date"])[:10])
    name = _free_name(folder, f"{date.isoformat()}-{finding.series}")
    parts = [
        f"# {finding.title}, {_shown(date)}",
        finding.words,
        f"```sh\n{finding.command}\n```",
        f"{machines.one_line(dict(machine))}. {others}",
    ]
    for title, cells in finding.tables:
        parts += [f"## {title}", markdown(cells)]
    pictures = _copied(finding.pictures, folder / "pictures", name)
    if pictures:
        parts += ["## Pictures", *(f"![{title}](pictures/{file})" for title, file in pictures.items())]
    data = folder / "data" / f"{name}.json"
    data.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": dict(machine), "command": finding.command, "others": others, "found": finding.data}
    data.write_text(_placeless(json.dumps(content, separators=(",", ":"))) + "\n", encoding="utf-8")
    parts.append(f"Every run: [JSON](data/{data.name}).")
    page = folder / f"{name}.md"
    page.write_text(_placeless("\n\n".join(parts)) + "\n", encoding="utf-8")
    index = folder / "index.md"
    index.write_text(enter(index.read_text(encoding="utf-8"), page.name, finding.question), encoding="utf-8")
    return page


def enter(index: str, file: str, question: str) -> str:
    """Returns the index with a page entered: its series comes first, the one before is an earlier one.

    Raises:
        ValueError: the index has no table of the known form.
    """
    lines = index.split("\n")
    if _HEAD[0] not in lines:
        raise ValueError(f"the index of results has no line {_HEAD[0]!r}")
    begin = lines.index(_HEAD[0]) + len(_HEAD)
    link = re.fullmatch(_LINK, f"[]({file})")
    if link is None:
        raise ValueError(f"{file} is not called after a date and a series")
    shown = f"[{_shown(datetime.date.fromisoformat(link[1]))}]({file})"
    earlier = ""
    for number in range(begin, len(lines)):
        if not lines[number].startswith("|"):
            break
        cells = [cell.strip() for cell in lines[number].strip("|").split("|")]
        if any(found[2] == link[2] for found in _LINK.finditer(lines[number])):
            question, earlier = cells[0], ", ".join(filter(None, cells[1:]))
            del lines[number]
            break
    lines.insert(begin, f"| {question} | {shown} | {earlier} |".replace("|  |", "| |"))
    return "\n".join(lines)


def _free_name(folder: Path, name: str) -> str:
    number = 1
    found = name
    while (folder / f"{found}.md").exists():
        number += 1
        found = f"{name}-{number}"
    return found


def _copied(pictures: Mapping[str, Path], folder: Path, name: str) -> dict[str, str]:
    """Copies the pictures to the page; returns their file names by title."""
    found = {}
    for title, path in pictures.items():
        folder.mkdir(parents=True, exist_ok=True)
        found[title] = f"{name}-{path.name}"
        shutil.copyfile(path, folder / found[title])
    return found


def _placeless(text: str) -> str:
    return _PLACE.sub("…", text)


def _shown(date: datetime.date) -> str:
    return f"{date.day} {date:%B} {date.year}"
