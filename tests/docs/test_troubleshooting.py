"""Every message of the trainer and its convolution has an entry in docs/troubleshooting.md, by its text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.docs.messages import messages, normal, words
from tests.docs.reasons import KINDS, PAGE, page_made

_SPAN = re.compile(r"(`+)(?P<text>.+?)\1")


def entries() -> Iterator[str]:
    """Return the texts by which the entries are found: the code in headings and in first columns."""
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            line = line.split(" | ")[0]
        elif not line.startswith("### `"):
            continue
        yield from (normal(match["text"]) for match in _SPAN.finditer(line))


def test_every_message_has_an_entry():
    known = list(entries())
    missing = [f"{m.where}: {m.text}" for m in messages() if not any(entry in m.text for entry in known)]
    assert not missing, f"{len(missing)} messages without an entry in {PAGE.name}:\n" + "\n".join(missing)


def test_every_entry_is_of_a_message():
    texts = [message.text for message in messages(least_words=1)]
    assert [entry for entry in entries() if not any(entry in text for text in texts)] == []


def test_the_reasons_for_waiting_are_those_of_the_table():
    assert PAGE.read_text() == page_made(PAGE.read_text()), "run python -m tests.docs.reasons"
    assert len(KINDS) <= 15


def test_an_entry_is_found_by_a_whole_text_or_by_three_words():
    whole = {message.text for message in messages(least_words=1)}
    assert [entry for entry in entries() if words(entry) < 3 and entry not in whole] == []


def test_every_entry_says_what_to_do():
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            assert [bool(cell) for cell in cells] == [True] * 3, line
