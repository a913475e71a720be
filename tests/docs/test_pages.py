"""Pages have one form, their links lead somewhere, and their pictures are those that the code draws."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

import overlap_train
from overlap_train import Trainer, options
from tests.docs.pages import COMPILED, DOCS, ROOT, RUN, name_of

PAGES = [*sorted(DOCS.glob("start/*.md")), *sorted(DOCS.glob("how_to/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_begins_with_one_question_and_its_answer(page):
    title, opening = page.read_text().split("\n", 2)[:2]
    assert title.startswith("# ")
    assert re.match(r"\*\*[^*]+\?\*\* \S", opening), opening


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


AT_THE_ROOT = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
UNDATED = [page for page in (*RUN, *COMPILED, *AT_THE_ROOT) if "results" not in page.parts]

_CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.M | re.S)
_LINK = re.compile(r"\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub and MkDocs make of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*RUN, *COMPILED], ids=name_of)
def test_links_lead_somewhere(page):
    for match in _LINK.finditer(_CODE.sub("", page.read_text())):
        target = (page.parent / match["path"]).resolve() if match["path"] else page
        assert target.exists(), f"{page}: {match[0]}"
        if match["anchor"] and target.suffix == ".md":
            assert match["anchor"] in anchors(target.read_text()), f"{page}: {match[0]}"


@pytest.mark.parametrize("page", UNDATED, ids=name_of)
def test_files_that_a_page_names_exist(page):
    """Where there is a link or none: a test that checks a guarantee, a script, an example."""
    folders = "docs|examples|notebooks|overlap_train|scripts|tests"
    named = re.findall(rf"`((?:{folders})/[\w/.-]*\w)", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


PICTURES = sorted(DOCS.glob("pictures/*.svg"))
_DRAW = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
import svg
print(json.dumps({name: importlib.import_module(name).drawing() for name in svg.names()}))
"""


@pytest.fixture(scope="module")
def drawn():
    command = [sys.executable, "-c", _DRAW, str(DOCS / "pictures")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def test_the_pictures_are_those_that_the_code_draws(drawn):
    kept = {path.stem: path.read_text() for path in PICTURES}
    assert kept.keys() == drawn.keys()
    assert [name for name in kept if kept[name] != drawn[name]] == [], "run python docs/pictures/svg.py"


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_says_what_it_shows_and_has_colours_for_the_dark(path):
    root = ET.parse(path).getroot()
    assert root.get("role") == "img"
    assert len(root.get("aria-label", "").split()) > 8
    assert "prefers-color-scheme: dark" in path.read_text()


def test_every_picture_stands_on_a_page():
    text = "\n".join(path.read_text() for path in [*DOCS.rglob("*.md"), ROOT / "README.md"])
    shown = set(re.findall(r"!\[[^\]]+\]\((?:\.\./|docs/)*pictures/(\w+)\.svg\)", text))
    assert shown == {path.stem for path in PICTURES}
