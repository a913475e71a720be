"""What was run, how long it took, and which deadlines were missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap_train.scheduling import Device
from overlap_train.scheduling.accounts import DeviceAccount, ModelAccount, SchedulerStatistics
from tests.scheduling.graphs import job


def test_a_device_adds_up_its_jobs():
    account = DeviceAccount()
    for size, seconds in ((100, 0.5), (20, 0.25)):
        account.book(replace(job(0.0, Device("cpu")), transfer_bytes=size), seconds)
    assert (account.jobs, account.busy_s, account.transfer_bytes) == (2, 0.75, 120)


def test_a_copy_stays_as_it_was():
    account = DeviceAccount(jobs=1)
    copy = account.copy()
    account.book(job(0.0, Device("cpu")), 1.0)
    assert (copy.jobs, account.jobs) == (1, 2)


def test_latencies_are_those_of_requests_with_a_result():
    account = ModelAccount(submitted=4, batches=2)
    for seconds in (1.0, 2.0, 6.0):
        account.book(arrival_s=10.0, end_s=10.0 + seconds, deadline_s=None, failed=False)
    account.book(arrival_s=10.0, end_s=99.0, deadline_s=None, failed=True)
    found = account.statistics()
    assert (found.submitted, found.completed, found.failed, found.batches) == (4, 3, 1, 2)
    assert (found.latency_mean_s, found.latency_p50_s) == (3.0, 2.0)
    assert found.latency_p95_s == pytest.approx(5.6)


def test_missed_deadlines_count_whether_answered_or_not():
    account = ModelAccount()
    for end_s, failed in ((5.0, False), (7.0, True), (6.5, False), (4.0, False)):
        account.book(arrival_s=0.0, end_s=end_s, deadline_s=5.0, failed=failed)
    found = account.statistics()
    assert (found.missed, found.worst_lateness_s) == (2, 2.0)


def test_old_latencies_are_forgotten():
    account = ModelAccount()
    for number in range(2000):
        account.book(arrival_s=0.0, end_s=1.0 if number < 976 else 3.0, deadline_s=None, failed=False)
    found = account.statistics()
    assert (found.completed, found.latency_mean_s) == (2000, 3.0)


def test_nothing_yet_is_no_latency():
    found = ModelAccount().statistics()
    assert (found.latency_mean_s, found.latency_p95_s, found.completed) == (0.0, 0.0, 0)


@pytest.mark.parametrize(("busy_s", "own_s", "share"), [(4.0, 1.0, 0.25), (0.0, 1.0, 0.0)])
def test_the_schedulers_own_time_is_a_share_of_that_inside_layers(busy_s, own_s, share):
    devices = {name: DeviceAccount(busy_s=busy_s / 2, overhead_s=own_s / 2) for name in "ab"}
    assert SchedulerStatistics({}, devices, 0, 0).overhead == share
