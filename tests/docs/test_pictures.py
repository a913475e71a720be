"""The pictures are those that their code draws, can be read, and stand on a page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from tests.docs.pages import DOCS, ROOT

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


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_the_words_of_a_picture_stay_in_it(path):
    root = ET.parse(path).getroot()
    width, height = (float(number) for number in root.get("viewBox", "").split()[2:])
    words = [element for element in root.iter() if element.tag.endswith("}text") and element.text]
    assert words
    for word in words:
        x, y, most = float(word.get("x")), float(word.get("y")), 8.0 * len(word.text)
        left = {"middle": x - most / 2, "end": x - most}.get(word.get("text-anchor"), x)
        inside = left > -most / 4 and left + 0.75 * most < width and 0 < y < height
        assert inside, word.text


def test_every_picture_stands_on_a_page():
    text = "\n".join(path.read_text() for path in [*DOCS.rglob("*.md"), ROOT / "README.md"])
    shown = set(re.findall(r"!\[[^\]]+\]\((?:\.\./|docs/)*pictures/(\w+)\.svg\)", text))
    assert shown == {path.stem for path in PICTURES}
