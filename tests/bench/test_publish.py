"""Hazards of figures and their pages: drifting machines, failed runs, a page that overwrites another."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from overlap_train.conv.selection import STOCK
from scripts.bench import publish
from scripts.bench.conv_layers import Row, interleave
from scripts.bench.conv_shapes import LAYERS
from scripts.bench.figures import Run, group_runs, ratio, ratio_cells, second_cells, tables, verdict
from scripts.bench.publish import Cells, Finding, markdown
from tests.bench.conftest import make_run

# Folders that a machine may have.
PLACES = [f"/{name}" for name in ("home", "tmp", "root")]


@pytest.fixture
def finding():
    cells = Cells(("way", "s"), (("a|b", "1.0"), ("c", "2.0")))
    data = {"log": f"read {PLACES[0]}/data and {PLACES[1]}/x-1", "ratio": "a/b"}
    return Finding("How wide?", "Sizes", "Some words.", [("Seconds", cells)], data)


@pytest.fixture
def put(tmp_path, machine):
    """Publishes a finding."""
    return lambda finding: publish.publish(
        finding,
        series="size",
        command="scripts/compare.sh --size=3",
        machine=machine,
        others="Nothing else ran.",
        folder=tmp_path,
    )


def test_a_page_has_its_command_machine_table_and_data(tmp_path, finding, put):
    page = put(finding)
    assert page.name == "2026-01-01-size.md"
    text = page.read_text()
    assert text.startswith(
        "# Sizes, 1 January 2026\n\nSome words.\n\n```sh\nscripts/compare.sh --size=3\n```\n"
    )
    assert "2 cores of An Imagined CPU" in text
    assert "Nothing else ran." in text
    rows = ("| way      |   s |", "| -------- | --: |", "| a&#124;b | 1.0 |", "| c        | 2.0 |")
    assert "\n".join(rows) in text
    assert "(data/2026-01-01-size.json)" in text
    assert (tmp_path / "data" / "2026-01-01-size.json").exists()


def test_no_folder_of_the_machine_is_published(tmp_path, finding, put):
    put(replace(finding, words=f"in {PLACES[2]}/.cache/x, a/b"))
    written = "".join(path.read_text() for path in tmp_path.rglob("2026*") if path.is_file())
    assert not [place for place in PLACES if place in written]
    assert "a/b" in written
    content = json.loads((tmp_path / "data" / "2026-01-01-size.json").read_text())
    assert content["found"] == {"log": "read … and …", "ratio": "a/b"}


def only_group(runs):
    (group,) = group_runs(runs)
    return group


def row_of(runs, system):
    """The cells of a system in the table of seconds, by their heads."""
    cells = second_cells(only_group(runs), cores=2)
    return next(dict(zip(cells.head, row, strict=False)) for row in cells.body if row[0] == system)


def broken(runs, *systems, repeats=(0, 1, 2)):
    return [
        replace(run, error="signal 9") if run.system in systems and run.repeat in repeats else run
        for run in runs
    ]


def test_ratios_are_of_pairs_and_of_our_median_to_their_best_run(runs):
    """A machine that slows down leaves the paired one untouched."""
    assert ratio(only_group(runs), "overlap", "keras-tfdata") == pytest.approx((0.6, 4.5 / 5.0))
    assert [Run.from_json(run.to_json()) for run in runs] == runs


def test_system_that_always_failed_has_a_row_with_its_reason_and_no_ratio(runs):
    changed = broken(runs, "paper")
    assert row_of(changed, "paper")["s/epoch"] == "failed: signal 9"
    cells = ratio_cells(only_group(changed))
    assert "paper" not in (*cells.head, *(row[0] for row in cells.body))
    ((title, cells),) = tables(group_runs([replace(run, error="no") for run in runs]), cores=2)
    assert title == "mnist, 6 threads: seconds"
    assert "failed: no" in markdown(cells), "there is a table even without a figure"


@pytest.mark.parametrize(("accuracy", "differs"), [(0.981, False), (0.979, True), (0.991, True)])
def test_accuracy_further_than_half_a_point_away_is_told(runs, accuracy, differs):
    changed = [replace(run, val_accuracy=accuracy) if run.system == "overlap" else run for run in runs]
    assert row_of(changed, "overlap")["val_acc"].endswith("differs!") is differs


def timed(**seconds):
    """Runs of some systems, with the seconds of an epoch of each repeat."""
    return only_group(
        [
            make_run(name.replace("_", "-"), n, s)
            for name, all_of in seconds.items()
            for n, s in enumerate(all_of)
        ]
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (
            {"overlap": (6.0, 5.0), "keras_tfdata": (9.0, 8.0)},
            "faster than Keras: an epoch takes 0.65 (0.62 to 0.67)",
        ),
        (
            {"overlap": (9.0, 8.0), "keras_tfdata": (8.0, 9.0)},
            "no difference from Keras that these runs show",
        ),
        ({"overlap": (9.0, 9.0), "keras_tfdata": (6.0, 6.0)}, "takes 1.50 (1.50 to 1.50) times as long"),
        ({"overlap": (5.0,), "keras_tfdata": (9.0,), "keras_numpy": (8.0,)}, "of the time of keras-numpy"),
        ({"overlap": (5.0,), "keras_tfdata": (9.0,), "overlap_sync": (6.0,)}, ". Overlapping gained: 0.83"),
        ({"overlap": (5.0,), "keras_tfdata": (9.0,), "overlap_sync": (5.0,)}, "gained nothing here: 1.00"),
    ],
)
def test_the_verdict_is_of_all_pairs_and_of_the_fastest_baseline(seconds, said):
    assert said in verdict(timed(**seconds), cores=2)


def test_a_ratio_is_of_times_of_the_same_round():
    slower_machine = {STOCK: [1.0, 1.0, 3.0, 3.0, 3.0], "auto": [0.5, 0.5, 1.5, 1.5, 1.5]}
    assert Row(LAYERS["unet"][1], 1, "forward", 1.0, slower_machine, "winograd").ratio("auto") == 2.0


def test_a_round_runs_each_contestant_once_in_an_order_of_its_own():
    ran: list[str] = []
    functions = {name: lambda name=name: ran.append(name) for name in (STOCK, "direct", "auto")}
    times = interleave(functions, budget_s=0.05)
    assert set(times) == set(functions)
    ran = ran[6:]  # each runs twice before it is timed
    rounds = [tuple(ran[at : at + 3]) for at in range(0, len(ran), 3)]
    assert len(rounds) >= 9
    assert all(sorted(names) == sorted(functions) for names in rounds)
    assert len(set(rounds)) > 1
