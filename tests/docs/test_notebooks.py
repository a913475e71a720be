"""Notebooks run from the first cell to the last, and the page of what a fit prints shows what it prints."""

import json
import linecache

import pytest

import overlap_train
from tests.docs.captures import PAGE, PLACES, capture, missing, sections, shape
from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# The other's code is in docs/custom_evaluation.md and an example, too.
@pytest.mark.by_default("five_minutes")
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(overlap_train, "configure", lambda **sizes: None)
    namespace = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] == "code":
            name, source = f"{path.name}[{number}]", "".join(cell["source"])
            # As in Jupyter, the source of a callback in a cell can be read.
            monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(True), name))
            exec(compile(source, name, "exec"), namespace)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_one_and_holds_no_output(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    assert [
        cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["outputs"]
    ] == []
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_page_of_the_site(path):
    pytest.importorskip("mkdocs", reason="the extra [docs] is not installed")
    from scripts import docs_hooks

    page = docs_hooks._as_page(path)
    assert page.startswith("# ")
    assert page.count("```python\n") == sum(
        cell["cell_type"] == "code" for cell in json.loads(path.read_text())["cells"]
    )


def test_the_page_has_each_place():
    assert list(sections(PAGE.read_text())) == list(PLACES)


@pytest.mark.nightly
@pytest.mark.parametrize("place", PLACES)
def test_a_capture_is_what_is_printed(place):
    if missing(place):
        pytest.skip(f"{', '.join(missing(place))} not installed")
    kept = sections(PAGE.read_text())[place]
    assert shape(capture(place)) == shape(kept), "run python -m tests.docs.captures"
