"""Which host is called slow, from the seconds that each has waited for the others."""

import pytest

from overlap_train.parallel.cluster_hosts import find_slow_host
from overlap_train.parallel.hosts import SlowHost


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
