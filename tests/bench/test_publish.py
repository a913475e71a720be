"""Hazards of published pages: one that overwrites another, a lost row of the index, a home folder."""

import json
from dataclasses import replace

import pytest

from scripts.bench import publish
from scripts.bench.publish import Cells, Finding, layout

INDEX = """# Results
Words.

| question | newest | earlier |
|---|---|---|
| How fast? | [25 November 2025](2025-11-25-speed.md) | |
| How large? | [24 November 2025](2025-11-24-size.md) | [1 May 2025](2025-05-01-size.md) |

More words.
"""

# Folders that a machine may have.
PLACES = [f"/{name}" for name in ("home", "tmp", "root")]


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "index.md").write_text(INDEX)
    return folder


@pytest.fixture
def finding():
    cells = Cells(("way", "s"), (("a|b", "1.0"), ("c", "2.0")))
    data = {"log": f"read {PLACES[0]}/data and {PLACES[1]}/x-1", "ratio": "a/b"}
    return Finding("How wide?", "Sizes", "Some words.", [("Seconds", cells)], data)


@pytest.fixture
def put(results, machine):
    """Publishes a finding."""
    return lambda finding: publish.publish(
        finding,
        series="size",
        command="scripts/compare.sh --size=3",
        machine=machine,
        others="Nothing else ran.",
        folder=results,
    )


def test_a_page_has_its_command_machine_table_and_data(results, finding, put):
    page = put(finding)
    assert page.name == "2026-01-01-size.md"
    text = page.read_text()
    assert text.startswith(
        "# Sizes, 1 January 2026\n\nSome words.\n\n```sh\nscripts/compare.sh --size=3\n```\n"
    )
    assert "2 cores of An Imagined CPU" in text
    assert "Nothing else ran." in text
    assert "| way | s |\n| --- | ---: |\n| a&#124;b | 1.0 |\n| c | 2.0 |" in text
    assert "(data/2026-01-01-size.json)" in text
    assert (results / "data" / "2026-01-01-size.json").exists()


def test_no_folder_of_the_machine_is_published(results, finding, put):
    put(replace(finding, words=f"in {PLACES[2]}/.cache/x, a/b"))
    written = "".join(path.read_text() for path in results.rglob("2026*") if path.is_file())
    assert not [place for place in PLACES if place in written]
    assert "a/b" in written
    content = json.loads((results / "data" / "2026-01-01-size.json").read_text())
    assert content["found"] == {"log": "read … and …", "ratio": "a/b"}


def test_a_second_page_of_a_day_is_numbered_and_the_first_one_stays(results, finding, put):
    first = put(finding)
    before = first.read_text()
    second = put(finding)
    assert (second.name, first.read_text()) == ("2026-01-01-size-2.md", before)
    row = (results / "index.md").read_text().splitlines()[5]
    assert row == (
        "| How large? | [1 January 2026](2026-01-01-size-2.md) | [1 January 2026](2026-01-01-size.md), "
        "[24 November 2025](2025-11-24-size.md), [1 May 2025](2025-05-01-size.md) |"
    )


def test_a_new_series_gets_a_row_and_every_other_row_stays():
    lines = publish.enter(INDEX, "2026-02-03-new-thing.md", "What is new?").splitlines()
    assert lines[5] == "| What is new? | [3 February 2026](2026-02-03-new-thing.md) | |"
    assert [*lines[:5], *lines[6:]] == INDEX.splitlines()


def test_a_series_is_not_taken_for_one_whose_name_begins_alike():
    lines = publish.enter(INDEX, "2026-02-03-size-of-files.md", "New?").splitlines()
    assert lines[5] == "| New? | [3 February 2026](2026-02-03-size-of-files.md) | |"
    assert len(lines) == len(INDEX.splitlines()) + 1


@pytest.mark.parametrize(("index", "file"), [("# Results\n", "2026-02-03-x.md"), (INDEX, "x.md")])
def test_an_index_or_a_name_of_another_form_is_refused(index, file):
    with pytest.raises(ValueError, match=r"has no line|is not called after"):
        publish.enter(index, file, "?")


def test_the_index_of_the_documentation_can_be_entered():
    index = (publish.RESULTS / "index.md").read_text()
    entered = publish.enter(index, "2099-01-01-epochs.md", "?")
    assert "(2026-11-24-epochs.md)" in entered
    assert len(entered.splitlines()) == len(index.splitlines())


def test_columns_line_up():
    lines = layout(Cells(("name", "s"), (("a", "1.00"), ("longer", "10.00")))).splitlines()
    assert [len(line) for line in lines] == [13, 13, 13, 13]
