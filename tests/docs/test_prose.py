"""The prose linter finds what it is for, and nothing in the documentation."""

import importlib.util
import re

from tests.docs.messages import messages
from tests.docs.pages import ROOT

_SPEC = importlib.util.spec_from_file_location("prose", ROOT / "scripts" / "prose.py")
prose = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(prose)


def test_the_documentation_is_clean(capsys):
    assert prose.main([]) == 0, capsys.readouterr().out


def test_messages_are_in_the_same_words():
    for message in messages(least_words=2):
        for pattern, instead in prose.WORDS:
            assert not re.search(pattern, message.text, re.I), f"{message.where}: write {instead}"


def test_every_page_that_the_site_shows_is_read():
    read = {path.relative_to(ROOT).as_posix() for path in prose.pages()}
    shown = set(re.findall(r"- (\w+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    outside = {name for name in shown if (ROOT / name).is_file()}
    assert outside == set(prose.AT_THE_ROOT) - {"README.md"}
    assert outside | {"README.md", "notebooks/five_minutes.ipynb", "docs/semantics.md"} <= read


def test_a_word_of_the_style_and_a_long_sentence_are_found_outside_of_code(tmp_path):
    path, long = tmp_path / "page.md", " ".join(["word"] * 31)
    path.write_text(f"Nobody looks.\n\n{long}.\n\n```python\n# Nobody, {long}\n```\n")
    assert len(list(prose.findings(path))) == 2
