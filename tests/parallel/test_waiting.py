"""Which host is called slow, from the seconds that each has waited for the others."""

import numpy as np
import pytest

from overlap_train.parallel.hosts import SingleHost, SlowHost, find_slow_host


@pytest.mark.parametrize(
    ("waits_s", "trained_s", "expected"),
    [
        ([3.0, 1.0], 10.0, SlowHost(1, 2.0)),
        ([1.0, 3.0], 10.0, SlowHost(0, 2.0)),
        ([3.0, 3.5, 0.5, 4.0], 10.0, SlowHost(2, 3.0)),
        ([3.0, 2.5], 10.0, None),  # half a second of ten
        ([0.3, 0.15], 0.4, None),  # a large part of next to nothing
        ([2.0, 2.0, 2.0], 10.0, None),
        ([0.0, 0.0], 0.0, None),
        ([5.0], 10.0, None),
    ],
)
def test_a_host_is_named_only_if_it_stands_out(waits_s, trained_s, expected):
    assert find_slow_host(waits_s, trained_s) == expected


class FakeWaits:
    """Waits that a test dictates."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.marked = False

    def mark(self):
        self.marked = True

    def since_mark(self):
        return self.seconds


class TwoHosts(SingleHost):
    """This host and another one, whose numbers a test dictates."""

    def __init__(self, own, other):
        super().__init__()
        self.count, self.waits = 2, FakeWaits(own)
        self._other = other

    def numbers(self, own):
        return np.asarray([own, self._other], float)


def test_the_hosts_compare_their_waits():
    hosts = TwoHosts(3.0, [1.0, 9.0])
    hosts.begin_waits()
    assert hosts.waits.marked
    assert hosts.slow_host(10.0) == SlowHost(1, 2.0)
    assert TwoHosts(1.0, [1.1, 9.0]).slow_host(10.0) is None


def test_a_host_that_is_alone_waits_for_nobody():
    alone = SingleHost()
    alone.begin_waits()
    assert alone.slow_host(10.0) is None
