"""Run times from the quantities of a layer: those that were fitted, and others like them."""

from __future__ import annotations

import numpy as np
import pytest

from overlap_train.scheduling.costs import WorkRegression
from overlap_train.scheduling.graph import Work, merge_work


def conv(flops, moved=1e4, weights=1e3):
    return Work("conv", flops, moved, weights)


def true_s(work):
    rate = 1e9 if work.kind == "conv" else 1e8
    return 1e-5 * work.operations + work.flops / rate


SAMPLES = [conv(f) for f in np.geomspace(1e4, 1e8, 12)] + [
    Work("pool", f, 1e4, 0.0) for f in np.geomspace(1e4, 1e7, 12)
]


@pytest.fixture(scope="module")
def fitted():
    return WorkRegression.fit([(work, true_s(work)) for work in SAMPLES])


def test_what_was_fitted_is_predicted(fitted):
    for work in SAMPLES:
        assert fitted.seconds(work) == pytest.approx(true_s(work), rel=0.1)


def test_layers_in_between_and_beyond_follow_the_mean_of_their_kind(fitted):
    for work in (conv(3e5), conv(4e7), Work("pool", 2e5, 1e4), conv(1e9)):
        assert fitted.seconds(work) == pytest.approx(true_s(work), rel=0.25)


def test_a_kind_that_was_not_seen_is_predicted_from_all(fitted):
    assert 0 < fitted.seconds(Work("norm", 1e6, 1e4)) < 1.0


def test_a_segment_takes_what_its_parts_take(fitted):
    parts = [conv(1e6), Work("pool", 1e6, 1e4)]
    expected = sum(map(fitted.seconds, parts))
    assert fitted.seconds(merge_work(parts)) == pytest.approx(expected)


def test_nothing_takes_no_time(fitted):
    assert fitted.seconds(Work("conv", 0.0, 0.0, 0.0, operations=0)) > 0


def test_one_layer_is_enough_and_none_is_not():
    alone = WorkRegression.fit([(conv(1e6), 0.25)])
    assert alone.seconds(conv(1e6)) == pytest.approx(0.25, rel=0.01)
    with pytest.raises(ValueError, match="needs at least one profiled layer"):
        WorkRegression.fit([])


def test_of_many_samples_some_over_all_of_them_are_kept():
    works = [conv(f) for f in np.geomspace(1e4, 1e8, 1000)]
    fitted = WorkRegression.fit([(work, true_s(work)) for work in works])
    assert len(fitted._centres) == 600
    for work in (works[0], works[-1]):
        assert fitted.seconds(work) == pytest.approx(true_s(work), rel=0.1)
