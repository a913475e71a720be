"""What a command has found, and how it is shown: for people, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from overlap_train._support.printing import printable
from overlap_train._support.version import __version__

State = Literal["ok", "note", "mend"]

_MARKS = {"ok": "ok", "note": "-", "mend": "mend"}


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


def show(report: Report, stream: TextIO, *, as_json: bool) -> None:
    """Write a report."""
    if as_json:
        stream.write(json.dumps(report.as_dict(), indent=2) + "\n")
    else:
        stream.write(printable("\n".join(_lines(report)) + "\n", stream))
    stream.flush()


def one_line(text: object, most: int = 400) -> str:
    """Return a text, such as an exception's, on one line of bounded length."""
    joined = " ".join(str(text).split()) or type(text).__name__
    return joined if len(joined) <= most else f"{joined[: most - 3]}..."


def _lines(report: Report) -> Iterator[str]:
    if report.title:
        yield report.title
    width = max((len(f.name) for findings in report.sections.values() for f in findings), default=0)
    for heading, findings in report.sections.items():
        if not findings:
            continue
        yield from ("", heading)
        for finding in findings:
            yield f"  {_MARKS[finding.state]:<4}  {finding.name:<{width}}  {finding.display}"
            for remedy in (finding.remedy or "").splitlines():
                yield f"  {'':<4}  {'':<{width}}  -> {remedy}"
    yield from ("", _summary(report))


def _summary(report: Report) -> str:
    count = len(report.to_mend)
    if count:
        return f"{count} to mend"
    has_remedies = any(finding.remedy for findings in report.sections.values() for finding in findings)
    return "nothing to mend" + ("; a line with -> is optional" if has_remedies else "")
