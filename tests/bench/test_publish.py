"""Hazards of published pages: one that overwrites another, a lost row of the index, a home folder."""

import json
from dataclasses import replace

import pytest

from scripts.bench import compare_page, publish
from scripts.bench.publish import Finding
from scripts.bench.table import Cells

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
def finding(tmp_path):
    (tmp_path / "bars.svg").write_text("<svg/>")
    cells = Cells(("way", "s"), (("a|b", "1.0"), ("c", "2.0")))
    return Finding(
        "size",
        "How wide?",
        "Sizes",
        "Some words.",
        "scripts/compare.sh --quick",
        [("Seconds", cells)],
        {"Bars": tmp_path / "bars.svg"},
        {"log": f"read {PLACES[0]}/data and {PLACES[1]}/x-1", "ratio": "a/b"},
    )


def test_a_page_has_its_command_machine_table_picture_and_data(results, finding, machine):
    page = publish.publish(finding, machine, "Nothing else ran.", folder=results)
    assert page.name == "2026-01-01-size.md"
    text = page.read_text()
    assert text.startswith(
        "# Sizes, 1 January 2026\n\nSome words.\n\n```sh\nscripts/compare.sh --quick\n```\n"
    )
    assert "2 cores of An Imagined CPU" in text
    assert "Nothing else ran." in text
    assert "| way | s |\n| --- | ---: |\n| a&#124;b | 1.0 |\n| c | 2.0 |" in text
    for link in ("pictures/2026-01-01-size-bars.svg", "data/2026-01-01-size.json"):
        assert f"({link})" in text
        assert (results / link).exists()


def test_no_folder_of_the_machine_is_published(results, finding, machine):
    publish.publish(replace(finding, words=f"in {PLACES[2]}/.cache/x, a/b"), machine, "", folder=results)
    written = "".join(path.read_text() for path in results.rglob("2026*") if path.is_file())
    assert not [place for place in PLACES if place in written]
    assert "a/b" in written
    content = json.loads((results / "data" / "2026-01-01-size.json").read_text())
    assert content["found"] == {"log": "read … and …", "ratio": "a/b"}


def test_a_second_page_of_a_day_is_numbered_and_the_first_one_stays(results, finding, machine):
    first = publish.publish(finding, machine, "", folder=results)
    before = first.read_text()
    second = publish.publish(finding, machine, "", folder=results)
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


def test_the_page_of_a_comparison_shows_every_system_and_its_load(found, tmp_path):
    full = replace(found, settings=found.settings | {"quick": False})
    page = compare_page.finding(full, series="epochs", command="c", folder=tmp_path)
    titles = [title for title, _ in page.tables]
    assert titles[1:] == ["mnist, 6 threads: seconds", "mnist, 6 threads: time ÷ a baseline's",
                          "Handing the weights to validation"]  # fmt: skip
    assert {path.name for path in page.pictures.values()} == {"epochs.svg", "copies.svg", "load-mnist-6.svg"}
    assert all("prefers-color-scheme: dark" in path.read_text() for path in page.pictures.values())
    assert {row[0] for row in page.tables[1][1].body} == {run.system for run in found.runs}
    assert "`mnist`: MNIST <of a test>" in page.words
    assert "after one that is not timed" in page.words
    whole = replace(full, settings=full.settings | {"whole": True})
    page = compare_page.finding(whole, series="epochs", command="c", folder=tmp_path)
    assert "the first one too" in page.words


def test_a_picture_is_the_same_each_time(found, tmp_path):
    full = replace(found, settings=found.settings | {"quick": False})
    first, second = (
        compare_page.finding(full, series="x", command="c", folder=tmp_path / name) for name in ("a", "b")
    )
    for title in first.pictures:
        assert first.pictures[title].read_text() == second.pictures[title].read_text()


def test_failed_and_quick_runs_are_not_published(found, tmp_path):
    with pytest.raises(ValueError, match="--quick"):
        compare_page.finding(found, series="x", command="c", folder=tmp_path)
    broken = replace(
        found,
        settings=found.settings | {"quick": False},
        runs=(*found.runs, replace(found.runs[0], error="signal 9")),
    )
    with pytest.raises(ValueError, match=r"1 runs failed.*signal 9"):
        compare_page.finding(broken, series="x", command="c", folder=tmp_path)
