"""Data and evaluation functions that fork: every fit ends, and leaves no process behind."""

from __future__ import annotations

import signal

import pytest

from tests import forked
from tests.whole_fits import data_that_forks


def run(function, *arguments, tmp_path, limit_s=150):
    forked.run(function, *arguments, said=tmp_path / "said", limit_s=limit_s, daemon=False)


@pytest.mark.nightly
def test_each_fit_of_worker_processes_ends(tmp_path):
    run(data_that_forks.fits, 5, tmp_path=tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(7300)
def test_each_of_500_fits_of_worker_processes_ends(tmp_path):
    run(data_that_forks.fits, 500, tmp_path=tmp_path, limit_s=7200)


@pytest.mark.nightly
def test_processes_of_training_validation_and_functions_go_together(tmp_path):
    run(data_that_forks.fits_of_every_kind, tmp_path=tmp_path)


@pytest.mark.by_default("from_an_executor")
@pytest.mark.parametrize("name", data_that_forks.GENERATORS)
def test_a_generator_that_starts_processes_ends_them(name, tmp_path):
    run(data_that_forks.fits_of_a_generator, name, tmp_path=tmp_path)


@pytest.mark.nightly
def test_a_fit_that_fails_leaves_no_process(tmp_path):
    run(data_that_forks.fits_that_fail, tmp_path=tmp_path)


@pytest.mark.by_default("15")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_processes_ends_the_fit_in_order(number, tmp_path):
    run(data_that_forks.an_interrupted_fit, number, tmp_path=tmp_path)
