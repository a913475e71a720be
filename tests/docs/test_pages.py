"""Pages under Start and How to have one form, and the one for users of Keras leaves no argument out."""

from __future__ import annotations

import inspect
import re

import pytest

import overlap_train
from overlap_train import Trainer, options
from tests.docs.pages import DOCS, ROOT, name_of

PAGES = [*sorted(DOCS.glob("start/*.md")), *sorted(DOCS.glob("how_to/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_one_question_and_its_answer(page):
    title, opening = page.read_text().split("\n", 2)[:2]
    assert title.startswith("# ")
    assert re.match(r"\*\*[^*]+\?\*\* \S", opening), opening


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_says_where_to_read_on(page):
    assert re.search(r"\]\((?!https?:)[^)]+\.md", page.read_text())


def test_every_argument_is_compared_with_keras():
    text = (DOCS / "start" / "coming_from_keras.md").read_text()
    names = [name for of in (Trainer.fit, Trainer.__init__) for name in inspect.signature(of).parameters]
    known = re.findall(r"`(\w+)(?:=[^`]*)?`", text)
    assert [name for name in names if name not in (*known, "self", "model")] == []


def test_every_public_name_has_its_line_and_every_option_its_word():
    text = (DOCS / "api.md").read_text()
    names = set(overlap_train.__all__) - {"__version__"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []
    for name in (*options.__all__, "Trainer"):
        arguments = inspect.signature(getattr(overlap_train, name)).parameters
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}("))
        assert [a for a in arguments if not re.search(rf"\b{a}\b", row)] == [], name


def test_the_gallery_shows_each_picture_under_the_example_that_makes_it():
    text = (DOCS / "start" / "examples.md").read_text()
    shown = re.findall(r"!\[[^\]]+\]\(pictures/(\w+)\.png\)\n\n\*`(\w+)\.py", text)
    assert sorted(file for file, _ in shown) == sorted(path.stem for path in DOCS.glob("start/pictures/*"))
    assert [pair for pair in shown if pair[0] != pair[1]] == []
    assert [name for name, _ in shown if not (ROOT / "examples" / f"{name}.py").exists()] == []


def test_every_example_and_notebook_is_listed():
    text = (DOCS / "start" / "examples.md").read_text()
    files = [*(ROOT / "examples").glob("*.*"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert [file.name for file in files if f"/{file.name})" not in text] == []
