"""What a command has found, and how it is shown: in colour on a terminal, plain in a pipe, or as JSON.

Where a program reads it, standard output is for the report alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from overlap_train._support.printing import is_watched, printable
from overlap_train._support.version import __version__

State = Literal["ok", "note", "mend"]

_STYLES = {"ok": ("ok", "green"), "note": ("-", "dim"), "mend": ("mend", "bold red")}


class UsageError(Exception):
    """A command was called with arguments that cannot be meant; the process ends with status 2."""


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    name: str
    value: Any  # for programs, as JSON
    text: str = ""  # for people; the value itself if empty
    state: State = "ok"
    remedy: str | None = None

    @property
    def display(self) -> str:
        """What people read."""
        return self.text or str(self.value)


@dataclass(frozen=True)
class Report:
    """What a command has found."""

    command: str
    sections: Mapping[str, Sequence[Finding]]
    title: str = ""

    @property
    def to_mend(self) -> list[Finding]:
        """What has to be mended."""
        return [f for findings in self.sections.values() for f in findings if f.state == "mend"]

    def as_dict(self) -> dict[str, Any]:
        """Return the report for programs."""
        sections = {
            heading: [
                {"name": f.name, "value": f.value, "text": f.display, "state": f.state, "remedy": f.remedy}
                for f in findings
            ]
            for heading, findings in self.sections.items()
        }
        ok = not self.to_mend
        return {"command": self.command, "version": __version__, "ok": ok, "sections": sections}


def show(report: Report, *, as_json: bool, stream: TextIO | None = None) -> None:
    """Write a report in the manner that suits the stream."""
    stream = sys.stdout if stream is None else stream
    if stream is None:
        return
    if as_json:
        stream.write(json.dumps(report.as_dict(), indent=2) + "\n")
    elif is_watched(stream) and os.environ.get("TERM") != "dumb":
        _show_rich(report, stream)
    else:
        stream.write(printable("\n".join(_plain_lines(report)) + "\n", stream))
    stream.flush()


def size(count: int) -> str:
    """Return a number of bytes for people, such as "3.2 MiB"."""
    value, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}"


def one_line(text: object, most: int = 400) -> str:
    """Return a text, such as an exception's, on one line of bounded length."""
    joined = " ".join(str(text).split()) or type(text).__name__
    return joined if len(joined) <= most else f"{joined[: most - 3]}..."


def _plain_lines(report: Report) -> Iterator[str]:
    if report.title:
        yield report.title
    width = max((len(f.name) for findings in report.sections.values() for f in findings), default=0)
    for heading, findings in report.sections.items():
        if not findings:
            continue
        yield from ("", heading)
        for finding in findings:
            mark, _ = _STYLES[finding.state]
            yield f"  {mark:<4}  {finding.name:<{width}}  {finding.display}"
            for remedy in (finding.remedy or "").splitlines():
                yield f"  {'':<4}  {'':<{width}}  -> {remedy}"
    yield from ("", _summary(report))


def _show_rich(report: Report, stream: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    if report.title:
        console.print(Text(report.title, "bold"))
    width = max((len(f.name) for findings in report.sections.values() for f in findings), default=0)
    for heading, findings in report.sections.items():
        if not findings:
            continue
        table = Table.grid(padding=(0, 2))
        table.add_column(width=4)
        table.add_column(width=width, no_wrap=True)
        table.add_column()
        for finding in findings:
            mark, style = _STYLES[finding.state]
            cell = Text(printable(finding.display, stream))
            for remedy in (finding.remedy or "").splitlines():
                cell.append("\n-> ", "dim").append(printable(remedy, stream), "cyan")
            table.add_row(Text(mark, style), Text(finding.name), cell)
        console.print()
        console.print(Text(heading, "bold"))
        console.print(table)
    console.print()
    console.print(Text(_summary(report), "bold red" if report.to_mend else "green"))


def _summary(report: Report) -> str:
    count = len(report.to_mend)
    if count:
        return f"{count} to mend"
    has_remedies = any(finding.remedy for findings in report.sections.values() for finding in findings)
    return "nothing to mend" + ("; a line with -> is optional" if has_remedies else "")


def report_only(resources: contextlib.ExitStack, *, put_back: bool) -> TextIO:
    """Send standard output to standard error until `resources` close, also of C code and child processes.

    Return a stream to the former standard output. `put_back` restores that at the end; the command's own
    process does not, or what a script prints at the interpreter's exit would follow the report.
    """
    before: TextIO | None = sys.stdout
    if before is None:  # closed by the parent process
        return resources.enter_context(open(os.devnull, "w", encoding="utf-8"))
    before.flush()
    duplicate = None
    with contextlib.suppress(OSError):  # there may be no descriptor 1
        duplicate = os.dup(1)
        resources.callback(os.close, duplicate)
    if put_back:
        resources.callback(_restore, before, duplicate)
    _point(1, at=2)
    sys.stdout = sys.stderr
    if duplicate is None or _descriptor(before) != 1:
        return before
    stream = open(duplicate, "w", encoding=before.encoding, errors=before.errors, closefd=False)  # noqa: SIM115
    return resources.enter_context(stream)


def _restore(before: TextIO, duplicate: int | None) -> None:
    before.flush()
    if duplicate is not None:
        _point(1, at=duplicate)
    sys.stdout = before


def _point(descriptor: int, *, at: int) -> None:
    with contextlib.suppress(OSError):
        os.dup2(at, descriptor)


def _descriptor(stream: TextIO) -> int | None:
    """Return what a stream writes to, None for one that is no file, as in a test or a notebook."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
