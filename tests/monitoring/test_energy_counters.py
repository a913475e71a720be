"""The machine's counters on made-up files and clocks, and the reason for each that it lacks."""

from __future__ import annotations

import threading

import pytest

from overlap_train.monitoring import energy_counters as energy
from tests.monitoring.test_energy import Clock


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
    counters, missing = energy.find_counters(powercap=tmp_path, hwmon=tmp_path)
    assert [counter.source for counter in counters if counter.source.startswith("RAPL")] == ["RAPL package-0"]
    assert "RAPL" not in [entry.source for entry in missing]
    for counter in counters:
        counter.close()


def test_missing_counters_are_told_with_their_reason(tmp_path):
    _, missing = energy.find_counters(powercap=tmp_path, hwmon=tmp_path)
    reasons = {entry.source: entry.reason for entry in missing}
    assert "no RAPL zone" in reasons["RAPL"]
    assert "no INA3221" in reasons["Jetson"]
    assert all(reasons.values())


def test_unreadable_counter_is_told(tmp_path):
    directory = zone(tmp_path, "intel-rapl:0", 1)
    (directory / "energy_uj").write_text("not a number")
    _, missing = energy.find_counters(powercap=tmp_path, hwmon=tmp_path)
    assert "cannot be read" in next(entry.reason for entry in missing if entry.source == "RAPL")


def test_counter_for_root_only_is_told(tmp_path, monkeypatch):
    zone(tmp_path, "intel-rapl:0", 1)

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(energy.Rapl, "__init__", refuse)
    _, missing = energy.find_counters(powercap=tmp_path, hwmon=tmp_path)
    assert "root only" in next(entry.reason for entry in missing if entry.source == "RAPL")


def test_jetson_rails_are_found_and_integrated(tmp_path):
    sensor = tmp_path / "hwmon3"
    sensor.mkdir()
    for name, text in {
        "name": "ina3221\n",
        "in1_label": "VDD_IN\n",
        "in1_input": "5000\n",
        "curr1_input": "2000\n",
        "in7_label": "sum of shunt voltages\n",
    }.items():
        (sensor / name).write_text(text)
    counters, _ = energy.find_counters(powercap=tmp_path, hwmon=tmp_path)
    rails = [counter for counter in counters if counter.source.startswith("Jetson")]
    try:
        assert [rail.source for rail in rails] == ["Jetson VDD_IN"]
        assert rails[0]._read_w() == 10.0
    finally:
        for counter in counters:
            counter.close()


def test_sampler_integrates_and_ends():
    clock, sampled = Clock(), threading.Event()

    def read_w():
        if threading.current_thread().name == "energy-rail":
            sampled.set()
        return 4.0

    rail = energy.JetsonRails("rail", read_w, clock=clock)
    assert sampled.wait(60)
    clock.now_s = 2.5
    assert rail.read_j() == pytest.approx(10.0)
    rail.close()
    rail.close()
    assert not any(thread.name == "energy-rail" for thread in threading.enumerate())


def test_nvml_counts_millijoules():
    class Library:
        def nvmlDeviceGetHandleByIndex(self, index):
            return index

        def nvmlDeviceGetTotalEnergyConsumption(self, handle):
            return 1500

    counter = energy.Nvml(0, Library())
    assert counter.read_j() == 1.5
    assert counter.source == "NVML GPU 0"
