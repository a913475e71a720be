"""Hazards of comparing times: drifting machines, failed runs, and systems that learn less."""

from dataclasses import replace

import pytest

from scripts.bench.groups import group_runs, ratios, rows
from scripts.bench.records import LoadSample

from .conftest import record


def only_group(runs):
    (group,) = group_runs(runs)
    return group


def ratio_of(runs, system, baseline):
    return next(r for r in ratios(only_group(runs)) if (r.system, r.baseline) == (system, baseline))


def test_paired_ratio_is_untouched_by_a_machine_that_slows_down(runs):
    ratio = ratio_of(runs, "overlap", "keras-tfdata")
    assert ratio.paired == pytest.approx((0.6, 0.6, 0.6))
    assert ratio.paired_median == pytest.approx(0.6)


def test_ratio_to_the_fastest_sets_our_median_against_their_best_run(runs):
    assert ratio_of(runs, "overlap", "keras-tfdata").to_fastest == pytest.approx(4.5 / 5.0)


def test_active_ratio_leaves_out_when_nothing_ran(runs):
    """A baseline that stood still for half of its time."""

    def stalled(run):
        half = len(run.load) // 2
        return replace(run, load=(*run.load[:half], *(replace(s, cpu_percent=0.5) for s in run.load[half:])))

    runs = [stalled(run) if run.system == "keras-tfdata" else run for run in runs]
    ratio = ratio_of(runs, "overlap", "keras-tfdata")
    assert ratio.paired_median == pytest.approx(0.6)
    assert ratio.paired_active == pytest.approx(1.2, rel=0.05)


def test_a_busy_gpu_is_not_idle():
    samples = (LoadSample(0.0, 100.0, (0.0,)), LoadSample(1.0, 2.0, (90.0,)), LoadSample(3.0, 2.0, (1.0,)))
    run = record("overlap", 0, 2.0, load=samples)
    assert (run.idle_s, run.active_epoch_s) == (2.0, 1.0)


def test_overlapped_is_also_measured_against_synchronous(runs):
    assert ratio_of(runs, "overlap", "overlap-sync").paired_median == pytest.approx(3.0 / 3.6)


def test_repeats_that_failed_on_either_side_make_no_pair(runs):
    broken = [
        replace(run, error="it stopped") if (run.system, run.repeat) == ("keras-tfdata", 1) else run
        for run in runs
    ]
    assert len(ratio_of(broken, "overlap", "keras-tfdata").paired) == 2
    row = next(row for row in rows(only_group(broken), cores=2) if row.system == "keras-tfdata")
    assert (row.runs, row.errors) == (2, ("it stopped",))


def test_system_that_always_failed_has_a_row_and_no_ratio(runs):
    broken = [replace(run, error="it stopped") if run.system == "paper" else run for run in runs]
    row = next(row for row in rows(only_group(broken), cores=2) if row.system == "paper")
    assert row.runs == 0
    assert all("paper" not in (r.system, r.baseline) for r in ratios(only_group(broken)))


def test_runs_that_know_no_threads_stand_in_every_table(runs):
    with_one = [replace(run, threads=1) for run in runs if run.threads is not None]
    one, six = group_runs([*runs, *with_one])
    assert (one.threads, six.threads) == (1, 6)
    assert one.systems == six.systems
    assert len(one.of("keras-numpy")) == len(six.of("keras-numpy")) == 3


@pytest.mark.parametrize(("accuracy", "agrees"), [(0.981, True), (0.979, False), (0.991, False)])
def test_accuracy_further_than_half_a_point_away_is_told(runs, accuracy, agrees):
    changed = [replace(run, val_accuracy=accuracy) if run.system == "overlap" else run for run in runs]
    row = next(row for row in rows(only_group(changed), cores=2) if row.system == "overlap")
    assert row.accuracy_agrees is agrees


def test_figures_are_for_one_epoch():
    runs = [record("overlap", repeat, epoch_s) for repeat, epoch_s in enumerate((4.0, 3.0, 8.0))]
    (row,) = rows(only_group(runs), cores=2)
    assert (row.epoch_s, row.fastest_s, row.slowest_s) == (4.0, 3.0, 8.0)
    assert (row.cpu_s, row.floor_s, row.hidden_s) == (5.0, 2.5, 0.5)
    assert row.cores_busy == pytest.approx(1.25)


def test_no_runs_make_no_groups():
    assert group_runs([]) == []
