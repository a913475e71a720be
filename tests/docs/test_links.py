"""Links within the repository lead somewhere, and README stays a page."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import COMPILED, ROOT, RUN, name_of

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


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
