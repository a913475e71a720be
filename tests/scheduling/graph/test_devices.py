"""Platforms: refused where they are invalid, and what a transfer costs."""

from __future__ import annotations

import pytest

from overlap_train.scheduling import Device, Platform, Transfer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device("a", slots=0), "slots must be at least 1; got 0"),
        (lambda: Platform(()), "unique names"),
        (lambda: Platform((Device("a"), Device("a"))), "unique names"),
        (lambda: Platform((Device("a"),), {("a", "b"): Transfer()}), "no device is named 'b'"),
        (lambda: Platform((Device("a"),), home="b"), "no device is named 'b'"),
    ],
)
def test_a_platform_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_transfers_cost_latency_and_bandwidth_and_staying_costs_nothing():
    platform = Platform((Device("c"), Device("g", "gpu")), {("c", "g"): Transfer(1e-3, 1e9)})
    assert platform.transfer_s("c", "g", 1e6) == pytest.approx(2e-3)
    assert platform.transfer_s("c", "c", 1e6) == 0
    assert platform.transfer_s("g", "c", 1e6) == 0
