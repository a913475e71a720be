"""Energy of work, by counters that are made up; no figure here is a measurement."""

import sys
import types

import pytest

from overlap_train.monitoring import energy


def test_idle_is_subtracted_and_short_work_repeated(monkeypatch):
    now_s = extra_j = 0.0

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    def work():
        nonlocal extra_j
        sleep(3.0)
        extra_j += 7.2

    monkeypatch.setattr(energy, "gpu_joules", lambda: now_s * 5.0 + extra_j)
    monkeypatch.setattr(energy, "time", types.SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    reading = energy.measure(work)
    assert (reading.runs, reading.seconds, reading.idle_w) == (4, 12.0, 5.0)
    assert reading.total_j == pytest.approx(12 * 5 + 4 * 7.2)
    assert reading.net_j == pytest.approx(4 * 7.2)
    assert reading.net_mwh_per_run == pytest.approx(2.0)


class NVMLError(Exception):
    pass


def of_driver(monkeypatch, *millijoules, fails=False):
    def count():
        if fails:
            raise NVMLError("Not Supported")
        return len(millijoules)

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetTotalEnergyConsumption": millijoules.__getitem__,
    }
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(NVMLError=NVMLError, **functions))


def test_all_gpus_count(monkeypatch):
    of_driver(monkeypatch, 1500, 250)
    assert energy.gpu_joules() == 1.75


@pytest.mark.parametrize(("fails", "reason"), [(True, "Not Supported"), (False, "the driver shows none")])
def test_without_a_counter_nothing_is_run_and_nothing_estimated(monkeypatch, fails, reason):
    def work():
        raise AssertionError("must not run")

    of_driver(monkeypatch, fails=fails)
    with pytest.raises(RuntimeError, match=f"no GPU counts its energy here: {reason}"):
        energy.measure(work)
