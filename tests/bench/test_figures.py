"""Hazards of comparing times: drifting machines, failed runs, and systems that learn less."""

import re
from dataclasses import replace

import pytest

from scripts.bench.figures import Run, claim_cells, group_runs, ratio, ratio_cells, second_cells, tables
from scripts.bench.publish import layout

from .conftest import make_run


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


def test_paired_ratio_is_untouched_by_a_machine_that_slows_down(runs):
    paired, _ = ratio(only_group(runs), "overlap", "keras-tfdata")
    assert paired == pytest.approx(0.6)


def test_ratio_to_the_fastest_sets_our_median_against_their_best_run(runs):
    _, to_fastest = ratio(only_group(runs), "overlap", "keras-tfdata")
    assert to_fastest == pytest.approx(4.5 / 5.0)


def test_overlapped_is_also_measured_against_synchronous(runs):
    cells = ratio_cells(only_group(runs))
    row = next(dict(zip(cells.head, row, strict=True)) for row in cells.body if row[0] == "overlap")
    assert row["overlap-sync"] == "0.83 (1.25)"


def test_repeats_that_failed_on_either_side_make_no_pair(runs):
    changed = [
        replace(run, wall_s=1e6) if run.repeat == 1 and run.system == "overlap" else run for run in runs
    ]
    changed = broken(changed, "keras-tfdata", repeats=(1,))
    assert ratio(only_group(changed), "overlap", "keras-tfdata")[0] == pytest.approx(0.6)
    assert row_of(changed, "keras-tfdata")["runs"] == "2 of 3"


def test_system_that_always_failed_has_a_row_with_its_reason_and_no_ratio(runs):
    changed = broken(runs, "paper")
    assert row_of(changed, "paper")["s/epoch"] == "failed: signal 9"
    cells = ratio_cells(only_group(changed))
    assert "paper" not in (*cells.head, *(row[0] for row in cells.body))


def test_comparison_without_a_single_figure_still_has_its_table(runs):
    changed = [replace(run, error="no") for run in runs]
    ((title, cells),) = tables(group_runs(changed), cores=2)
    assert title == "mnist, 6 threads: seconds"
    assert "failed: no" in layout(cells)


def test_runs_that_know_no_threads_stand_in_every_table(runs):
    with_one = [replace(run, threads=1) for run in runs if run.threads is not None]
    one, six = group_runs([*runs, *with_one])
    assert (one.threads, six.threads) == (1, 6)
    assert one.systems == six.systems
    assert len(one.of("keras-numpy")) == len(six.of("keras-numpy")) == 3


@pytest.mark.parametrize(("accuracy", "differs"), [(0.981, False), (0.979, True), (0.991, True)])
def test_accuracy_further_than_half_a_point_away_is_told(runs, accuracy, differs):
    changed = [replace(run, val_accuracy=accuracy) if run.system == "overlap" else run for run in runs]
    assert row_of(changed, "overlap")["val_acc"].endswith("differs!") is differs


def test_figures_are_for_one_epoch():
    runs = [make_run("overlap", repeat, epoch_s) for repeat, epoch_s in enumerate((4.0, 3.0, 8.0))]
    row = row_of(runs, "overlap")
    assert (row["s/epoch"], row["spread"], row["CPU s"]) == ("4.00", "3.00 to 8.00", "5.00")
    assert (row["floor s"], row["hidden s"], row["cores busy"]) == ("2.50", "0.50", "1.25")


def test_paper_stands_next_to_ours_marked_as_measured_elsewhere(runs):
    text = layout(claim_cells(group_runs(runs)))
    line = next(line for line in text.splitlines() if line.startswith("MNIST, 6 threads"))
    assert "measured elsewhere (Core i5-9500, GTX 1650)" in text
    assert re.search(r"10\.8% +4\.0% +40\.0%$", line)


def test_claims_of_what_was_not_measured_are_left_out(runs):
    other = [replace(run, workload="text") for run in runs]
    assert [title for title, _ in tables(group_runs(other), cores=2)] == [
        "text, 6 threads: seconds",
        "text, 6 threads: time ÷ a baseline's",
    ]
    assert "MNIST of 1 GB" not in layout(claim_cells(group_runs(runs)))


def test_a_run_is_the_same_after_it_was_written_down(runs):
    assert [Run.from_json(run.to_json()) for run in runs] == runs


def test_no_runs_make_no_groups():
    assert group_runs([]) == []
