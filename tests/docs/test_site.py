"""The site builds strictly, its links lead somewhere, and it shows itself without an error."""

from __future__ import annotations

import re

import pytest

from tests.docs.browser import Browser, find_browser
from tests.docs.pages import DOCS
from tests.docs.site import broken_links, read_pages

PAGES = ("index.html", "results/2026-11-24-epochs.html", "reference/trainer.html")
WINDOWS = [(360, True), (768, False), (1280, True), (1280, False)]


@pytest.fixture(scope="module")
def pages(site):
    return read_pages(site)


def luminance(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


def test_every_link_leads_somewhere(site, pages):
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert broken_links(site, pages) == []


def test_every_result_is_in_the_index():
    index = (DOCS / "results" / "index.md").read_text()
    dated = [path.name for path in DOCS.glob("results/2*.md")]
    assert [name for name in dated if f"({name})" not in index] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    (tmp_path / "index.html").write_text('<h1 id="here"><a href="#here">a</a> <a href="#there">b</a></h1>')
    (tmp_path / "other.html").write_text('<a href="index.html#here">a</a> <a href="lost.html">b</a>')
    assert broken_links(tmp_path, read_pages(tmp_path)) == ["index.html: #there", "other.html: lost.html"]


def test_no_page_loads_anything_from_another_host(site, pages):
    loads = {load for page in pages.values() for load in page.loads}
    assert any(load.endswith(".js") for load in loads)
    assert [load for load in loads if re.match(r"\w+:|//", load) and not load.startswith("data:")] == []
    styles = "\n".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", styles) == []


def faults(browser, page, width, dark):
    """Returns what is wrong with how a page shows itself."""
    seen = browser.look(page, width=width, dark=dark)
    found = [*seen.console, *(f"broken: {file}" for file in seen.found["broken"])]
    if seen.found["overflow_px"] > 0:
        found.append(f"wider than the window by {seen.found['overflow_px']} px")
    if (luminance(seen.found["background"]) < 128) != dark:
        found.append(f"its background is {seen.found['background']}")
    if seen.screenshot.stat().st_size <= 10_000:
        found.append("its screenshot is empty")
    return found


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.by_default("index.html-360-True", "reference/trainer.html-768-False")
def test_a_page_shows_itself(browser, page, width, dark):
    assert faults(browser, page, width, dark) == []


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_every_page_shows_itself(site, browser, width, dark):
    names = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert len(names) > len(list(DOCS.rglob("*.md")))
    found = {name: faults(browser, name, width, dark) for name in names}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_an_error_and_another_host_are_seen(tmp_path):
    if find_browser() is None:
        pytest.skip("needs Chromium: chromium, chromium-browser or google-chrome on the PATH")
    page = "<script>lost()</script><img src='http://other.example/x.png'><p style='width: 900px'>wide</p>"
    (tmp_path / "page.html").write_text(page)
    with Browser(tmp_path, tmp_path).serving() as browser:
        seen = browser.look("page.html", width=360)
    assert any("lost is not defined" in line for line in seen.console)
    assert seen.found["broken"] == ["http://other.example/x.png"]
    assert seen.found["overflow_px"] > 500


def test_the_search_finds_a_page_by_a_word(browser):
    seen = browser.look("index.html?q=rollback")
    assert seen.console == []
    assert any("semantics.html" in result for result in seen.found["results"])
