"""The prose linter finds what it is for, and nothing in the documentation."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest

from tests.docs.messages import messages
from tests.docs.pages import ROOT

_SPEC = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
prose = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(prose)


def found_in(tmp_path, text, name="page.md"):
    path = tmp_path / name
    path.write_text(text)
    return list(prose.findings(path))


def test_the_documentation_is_clean(capsys):
    assert prose.main([]) == 0, capsys.readouterr().out


def test_messages_are_in_the_same_words():
    for message in messages(least_words=2):
        for pattern, instead in prose.WORDS:
            assert not re.search(pattern, message.text, re.I), f"{message.where}: write {instead}"


@pytest.mark.parametrize(
    "word", ["Beside it.", "so many steps", "Nobody looks.", "a layer of the user's own", "likewise"]
)
def test_words_of_the_style_are_found(tmp_path, word):
    assert len(found_in(tmp_path, f"# Page\n\n{word}\n")) == 1


def test_a_long_sentence_is_found_over_several_lines_and_code_counts_as_a_word(tmp_path):
    words = ["word"] * 14
    long = f"{' '.join(words)} `a b c d e f`\n{' '.join(words)} more `x` words."
    assert [finding.split(": ")[1] for finding in found_in(tmp_path, long)] == ["a sentence of 32 words"]
    assert found_in(tmp_path, long.replace("more", "end. More")) == []


@pytest.mark.parametrize("between", ["\n\n", "\n- ", "\n1. ", "\n# ", "\n| ", "; `code` "])
def test_items_cells_and_headings_are_sentences_of_their_own(tmp_path, between):
    half = " ".join(["word"] * 20)
    assert found_in(tmp_path, f"{half}{between}{half}") == []


def test_code_and_comments_are_not_read(tmp_path):
    code = f"```python\n# {'word ' * 40} nobody\n```\n\n<!-- compiled only: {'word ' * 40} -->\n\n`nobody`\n"
    assert found_in(tmp_path, code) == []


def test_the_words_of_a_notebook_are_read_and_its_code_is_not(tmp_path):
    cells = [{"cell_type": kind, "source": ["Nobody\n", "looks."]} for kind in ("markdown", "code")]
    assert len(found_in(tmp_path, json.dumps({"cells": cells}), "page.ipynb")) == 1


def test_every_page_that_the_site_shows_is_read():
    read = {path.relative_to(ROOT).as_posix() for path in prose.pages()}
    shown = set(re.findall(r"- (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    outside = {name for name in shown if (ROOT / name).is_file()}
    assert outside == set(prose.AT_THE_ROOT) - {"README.md"}
    assert outside | {"README.md", "notebooks/five_minutes.ipynb", "docs/semantics.md"} <= read


def test_public_docstrings_are_read_and_private_ones_are_not(tmp_path):
    source = 'def shown():\n    """Nobody."""\n\n\ndef _hidden():\n    """Nobody."""\n'
    assert [finding.split(":")[1] for finding in found_in(tmp_path, source, "module.py")] == ["2"]
