"""The site builds strictly, documents every public name, and shows itself without an error."""

import importlib
import inspect
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, SETUP

DATED = ("results/", "repository/")  # tables of many figures, commands as they were typed, and sources


def luminance(colour):
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3


def test_every_result_is_in_the_index():
    index = (DOCS / "results" / "index.md").read_text()
    dated = [path.name for path in DOCS.glob("results/2*.md")]
    assert [name for name in dated if f"({name})" not in index] == []


def test_a_page_gets_the_setup_before_its_first_block_that_runs():
    hooks = pytest.importorskip("scripts.docs_hooks", reason="the extra [docs] is not installed")
    page = "# Page\n\n<!-- compiled only: needs a GPU -->\n```python\na()\n```\n\n```python\nb()\n```\n"
    made = hooks._with_setup(page)
    assert made.index("a()") < made.index("    def make_model") < made.index("b()")
    for other in (page.replace("b()", "").replace("```python\n\n", ""), SETUP.read_text()):
        assert hooks._with_setup(other) == other


@pytest.mark.nightly
def test_no_page_loads_anything_from_another_host(site):
    loads = set()
    for path in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", path.read_text())
        shown = "".join(tag for tag in tags if "canonical" not in tag)
        loads |= set(re.findall(r"\b(?:src|href)=[\"']?([^\"'\s>]+)", shown))
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
    # A code block may scroll where a screen is narrow; a table that is wider than a phone does not fit it.
    parts = [part for part in seen.found["scrolling"] if width >= 1280 or part.startswith("table")]
    found += [f"scrolls: {part}" for part in parts if not page.startswith(DATED)]
    if (luminance(seen.found["background"]) < 128) != dark:
        found.append(f"its background is {seen.found['background']}")
    if seen.found["words"] < 100:
        found.append("it is empty")
    return found


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("width", "dark"), [(360, True), (768, False), (1280, False)])
def test_every_page_shows_itself(site, browser, width, dark):
    names = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    assert len(names) > len(list(DOCS.rglob("*.md")))
    found = {name: faults(browser, name, width, dark) for name in names}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


# What people type, and the page on which they should land.
QUERIES = {
    "in step": "troubleshooting.html",
    "resume": "how_to/resume.html",
    "custom metric": "how_to/custom_evaluation.html",
    "slow validation": "how_to/slow_validation.html",
    "out of memory": "how_to/large_data.html",
    "install": "start/install.html",
    "early stopping": "how_to/early_stopping.html",
    "checkpoint": "how_to/resume.html",
    "timeline": "how_to/monitoring.html",
    "tensorboard": "how_to/monitoring.html",
    "mlflow": "how_to/other_libraries.html",
    "keras tuner": "how_to/other_libraries.html",
    "GAN": "how_to/custom_steps.html",
    "multiple GPUs": "how_to/several_gpus.html",
    "kubernetes": "how_to/several_hosts.html",
    "seed": "how_to/reproducibility.html",
    "rollback": "semantics.html",
    "callback": "start/coming_from_keras.html",
    "ValidationPolicy": "reference/options.html",
    "compare": "command_line.html",
}


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node on the PATH")
def test_the_search_finds_the_right_page_first(site):
    asked = ["node", str(Path(__file__).with_name("search.js")), str(site), *QUERIES]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=120)
    first = {query: places[:1] for query, places in zip(QUERIES, json.loads(done.stdout), strict=True)}
    assert len(first) == 20
    assert {q: p for q, p in first.items() if [x.partition("#")[0] for x in p] != [QUERIES[q]]} == {}


@pytest.mark.nightly
def test_results_and_the_changelog_are_not_searched(site):
    places = {
        entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
    }
    assert any(place.startswith("how_to/") for place in places)
    assert [place for place in places if place.startswith(("results/", "repository/"))] == []


ROOMS = ("conv", "errors", "monitoring", "options", "parallel", "records", "routing", "scheduling", "trainer")
MODELS = ["models.mnist_data"]
_DIRECTIVE = re.compile(r"^::: (?P<name>[\w.]+)$", re.M)


def public():
    """Yields each public name once for each place from which it may be imported."""
    for place in ("overlap_train", *(f"overlap_train.{room}" for room in (*ROOMS, "zero_copy", *MODELS))):
        for name in importlib.import_module(place).__all__:
            yield f"{place}.{name}"


def find(name):
    module, _, rest = name.rpartition(".")
    return importlib.import_module(name) if not module else getattr(importlib.import_module(module), rest)


def identity(name):
    """Returns what a name means, or the name itself where values of several names may be equal."""
    value = find(name)
    return value if inspect.isclass(value) or inspect.isroutine(value) else name


def documented():
    return [name for page in DOCS.glob("reference/*.md") for name in _DIRECTIVE.findall(page.read_text())]


def test_every_public_name_is_in_the_reference():
    known = {identity(name) for name in documented() if not inspect.ismodule(find(name))}
    named = {"overlap_train.__version__", "overlap_train.errors"}  # a text, and a page of its own
    missing = [name for name in public() if name not in named and identity(name) not in known]
    assert not missing, f"not in docs/reference: {missing}"


def test_the_reference_has_only_public_names_and_each_once():
    names = documented()
    known = {identity(name) for name in public()}
    assert sorted(names) == sorted(set(names))
    assert [n for n in names if n != "overlap_train.errors" and identity(n) not in known] == []


@pytest.mark.nightly
def test_the_site_documents_what_the_pages_name(site):
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]  # which Sphinx reads too
    entries = (entry.split(" ") for entry in zlib.decompress(packed).decode().splitlines())
    assert set(documented()) <= {entry[0] for entry in entries if entry[1].startswith("py:")}
