"""Energy of work, by counters that are made up; no figure here is a measurement."""

import pytest

from overlap_train.monitoring import energy


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds


class Counter:
    source = "made up"

    def __init__(self, clock):
        self._clock = clock
        self.watts = 5.0
        self.extra_j = 0.0

    def read_j(self):
        return self._clock() * self.watts + self.extra_j

    def close(self):
        pass


def test_idle_is_subtracted_and_short_work_repeated():
    clock = Clock()
    counter = Counter(clock)

    def work():
        clock.sleep(3.0)
        counter.extra_j += 7.2

    (reading,), missing = energy.measure(work, counters=[counter], clock=clock, sleep=clock.sleep)
    assert not missing
    assert (reading.runs, reading.seconds, reading.idle_w) == (4, 12.0, 5.0)
    assert reading.total_j == pytest.approx(12 * 5 + 4 * 7.2)
    assert reading.net_j == pytest.approx(4 * 7.2)
    assert reading.net_mwh_per_run == pytest.approx(2.0)


@pytest.mark.parametrize("window_s", [0, 9.9, float("nan"), -1])
def test_short_window_is_refused(window_s):
    with pytest.raises(ValueError, match="at least 10"):
        energy.measure(lambda: None, window_s=window_s, counters=[])


def test_without_a_counter_nothing_is_run_and_nothing_estimated():
    def work():
        raise AssertionError("must not run")

    assert energy.measure(work, counters=[]) == ([], [])
