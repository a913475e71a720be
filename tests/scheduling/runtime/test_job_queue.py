"""The queue: each device gets its most urgent job first, and a closed queue takes nothing."""

from __future__ import annotations

import pytest

from overlap_train.errors import SchedulerClosedError
from overlap_train.scheduling import Device
from overlap_train.scheduling.distributor import JobQueue
from tests.scheduling.graphs import job


def test_queue_gives_each_device_its_most_urgent_job_first():
    one, two = Device("one"), Device("two")
    queue = JobQueue((one, two))
    jobs = [job(3, one), job(1, one), job(1, one, rank=5), job(0, two), job(1, one)]
    for each in jobs:
        queue.put(each)
    assert [queue.take_now(one) for _ in range(5)] == [jobs[2], jobs[1], jobs[4], jobs[0], None]
    assert queue.take(two) is jobs[3]


def test_a_closed_queue_returns_what_is_left_and_takes_nothing():
    device = Device("one")
    queue = JobQueue((device,))
    queue.put(left := job(0, device))
    assert queue.close() == [left]
    assert queue.close() == []
    assert queue.take(device) is None
    with pytest.raises(SchedulerClosedError):
        queue.put(left)
