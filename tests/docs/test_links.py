"""Links within the repository lead somewhere, and README stays a page."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import COMPILED, ROOT, RUN, name_of

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


def test_the_way_of_the_data_names_files_of_the_package():
    text = (ROOT / "docs" / "internals" / "data_flow.md").read_text()
    named = set(re.findall(r"`([\w/]+(?:/|\.py|\.cc))`", text))
    assert len(named) > 20
    assert [name for name in named if not any((ROOT / "overlap_train").glob(f"**/{name.rstrip('/')}"))] == []


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
