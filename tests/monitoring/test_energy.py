"""Energy of work, by counters and files that are made up; no figure here is a measurement."""

from __future__ import annotations

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


def zone(root, name, energy_uj, range_uj=1000):
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "name").write_text("package-0\n")
    (directory / "energy_uj").write_text(f"{energy_uj}\n")
    (directory / "max_energy_range_uj").write_text(f"{range_uj}\n")
    return directory


def test_rapl_survives_a_wrap_around(tmp_path):
    directory = zone(tmp_path, "intel-rapl:0", 990)
    counter = energy.Rapl(directory)
    (directory / "energy_uj").write_text("10")
    assert counter.read_j() == pytest.approx(21e-6)
    (directory / "energy_uj").write_text("15")
    assert counter.read_j() == pytest.approx(26e-6)
    assert counter.source == "RAPL package-0"


def test_parts_of_a_package_are_not_counted_twice(tmp_path):
    zone(tmp_path, "intel-rapl:0", 1)
    zone(tmp_path, "intel-rapl:0:0", 1)
    counters, missing = energy.find_counters(powercap=tmp_path)
    assert [counter.source for counter in counters if counter.source.startswith("RAPL")] == ["RAPL package-0"]
    assert "RAPL" not in [entry.source for entry in missing]


def test_nvml_counts_millijoules():
    class Library:
        def nvmlDeviceGetHandleByIndex(self, index):
            return index

        def nvmlDeviceGetTotalEnergyConsumption(self, handle):
            return 1500

    counter = energy.Nvml(0, Library())
    assert counter.read_j() == 1.5
    assert counter.source == "NVML GPU 0"


@pytest.mark.parametrize(
    ("energy_uj", "failing", "reason"),
    [(None, None, "no RAPL zone"), ("no number", None, "cannot be read"), (1, PermissionError, "root only")],
)
def test_a_missing_counter_is_told_with_its_reason(tmp_path, monkeypatch, energy_uj, failing, reason):
    if energy_uj is not None:
        zone(tmp_path, "intel-rapl:0", energy_uj)
    if failing is not None:
        monkeypatch.setattr(energy, "Rapl", lambda _: (_ for _ in ()).throw(failing))
    _, missing = energy.find_counters(powercap=tmp_path)
    assert reason in next(entry.reason for entry in missing if entry.source == "RAPL")
