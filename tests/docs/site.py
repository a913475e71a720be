"""The built site, read from its files: links, anchors, what a page loads, and the inventory of names."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

_LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href")}


@dataclass
class SitePage:
    """A page of the site.

    Attributes:
        path: its file.
        anchors: the ids in it.
        links: the targets of its links, as they are written.
        loads: what it loads: scripts, styles, fonts, pictures.
    """

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self, page: SitePage) -> None:
        super().__init__()
        self._page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag, name) == ("a", "name"):
                self._page.anchors.add(value)
            elif (tag, name) == ("a", "href"):
                self._page.links.append(value)
            elif (tag, name) in _LOADED and ("rel", "canonical") not in attrs:
                self._page.loads.append(value)


def read_pages(site: Path) -> dict[Path, SitePage]:
    """Return the pages of a site by their files."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = SitePage(path)
        _Reader(pages[path]).feed(path.read_text())
    return pages


def broken_links(site: Path, pages: dict[Path, SitePage]) -> list[str]:
    """Return the links within a site that lead to no file, or to no place in its page."""
    broken = []
    for page in pages.values():
        for link in page.links:
            address, anchor = urldefrag(link)
            if urlsplit(link).scheme:
                continue
            folder = site if address.startswith("/") else page.path.parent
            target = (folder / unquote(address).lstrip("/")).resolve() if address else page.path
            target = target / "index.html" if target.is_dir() else target
            there = target in pages and (not anchor or unquote(anchor) in pages[target].anchors)
            if not (there or (target not in pages and target.is_file())):
                broken.append(f"{page.path.relative_to(site)}: {link}")
    return broken


def inventory(site: Path) -> set[str]:
    """Return the names of the objects that the site documents, from the inventory that Sphinx reads too."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = (entry.split(" ") for entry in zlib.decompress(packed).decode().splitlines())
    return {entry[0] for entry in entries if entry[1].startswith("py:")}
