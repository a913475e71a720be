"""Why a training waits, in docs/troubleshooting.md; `python -m tests.docs.reasons` writes its messages."""

from __future__ import annotations

import re
import textwrap

from overlap_train._inspection.effects import KINDS as EFFECTS
from overlap_train._support.reasons import KINDS, joined
from tests.docs.pages import DOCS

PAGE = DOCS / "troubleshooting.md"
_MADE = re.compile(r"(?<=<!-- made by python -m tests.docs.reasons -->\n).*?(?=<!-- to here -->)", re.S)


def sections(text: str) -> str:
    """Return a section for each identifier, in Markdown, with what the page's text says of it."""
    meanings = dict(re.findall(r"^### (\S+)\n> .*?\n\n(.*?)\n\n\*\*Remedy", text, re.M | re.S))
    lines: list[str] = []
    for identifier, kind in sorted(KINDS.items()):
        lines += [f"### {identifier}", f"> {kind.sentence.format('…')}", "", meanings[identifier], ""]
        lines += [*_wrapped(f"**Remedy:** {_as_code(joined(kind.remedies))}."), ""]
        if identifier == "step-stateful":
            lines += [f"- {what}: {_as_code(remedy)}." for _, what, remedy in EFFECTS] + [""]
    return "\n".join(lines)


def page_made(text: str) -> str:
    """Return the text of the page with the sections of the table."""
    return _MADE.sub(lambda made: sections(made[0]), text)


def _as_code(text: str) -> str:
    """Return a message with what is code in it marked as such."""
    return re.sub(
        r"[\w.]+\([^()]*(?:\([^()]*\))?[^()]*\)|\[\*.*?\]|\w+ ?= ?(?:True|False)|\w*[._]\w[\w.]*\w",
        r"`\g<0>`",
        text,
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page_made(PAGE.read_text()))
