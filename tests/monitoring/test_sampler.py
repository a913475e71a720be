from __future__ import annotations

import logging
import math
import sys
import threading
import types

import pytest

from overlap_train.monitoring import sampler as module
from overlap_train.monitoring.sampler import LoadMeter, Sampler
from overlap_train.records import Sample


class _CountingMeter:
    """Gives samples 0, 1, 2 … and says when `count` of them were taken."""

    def __init__(self, count: int) -> None:
        self.taken = 0
        self.enough = threading.Event()
        self._count = count

    def __call__(self) -> Sample:
        sample = Sample(float(self.taken), cpu_percent=float(self.taken), rss_bytes=self.taken)
        self.taken += 1
        if self.taken >= self._count:
            self.enough.set()
        return sample


@pytest.fixture
def fresh_gpu_search(monkeypatch):
    monkeypatch.setattr(module, "_gpu_given_up", threading.Event())


def _fake_gpustat(monkeypatch, query):
    fake = types.ModuleType("gpustat")
    fake.new_query = query
    monkeypatch.setitem(sys.modules, "gpustat", fake)


@pytest.mark.parametrize("most", [3, 1000])
def test_samples_come_in_order_and_stay_after_close_but_the_oldest_beyond_the_limit(most):
    meter = _CountingMeter(9)
    with Sampler(1e-4, max_samples=most, meter=meter) as sampler:
        assert meter.enough.wait(60)
    first = max(0, meter.taken - most)
    assert [sample.rss_bytes for sample in sampler.samples()] == list(range(first, meter.taken))


def test_thread_is_a_named_daemon_and_gone_after_close():
    sampler = Sampler(3600, meter=_CountingMeter(1))
    assert [t.daemon for t in threading.enumerate() if t.name == "overlap_train-sampler"] == [True]
    sampler.close()  # which waits for no interval
    sampler.close()
    assert "overlap_train-sampler" not in {thread.name for thread in threading.enumerate()}
    assert sampler.samples() == ()


def test_forgotten_sampler_warns_and_takes_its_thread_with_it():
    sampler = Sampler(3600, meter=_CountingMeter(1))
    thread = sampler._thread
    with pytest.warns(ResourceWarning, match="Sampler was not closed"):
        del sampler
    thread.join(60)
    assert not thread.is_alive()


def test_failing_meter_ends_the_sampling_and_not_the_run(caplog):
    def fails() -> Sample:
        raise OSError("no /proc")

    with Sampler(1e-4, meter=fails) as sampler:
        sampler._thread.join(60)
    assert sampler.samples() == ()
    assert "no /proc" in caplog.text


def test_meter_reads_this_process_and_the_gpus_whose_load_may_be_unknown(monkeypatch, fresh_gpu_search):
    gpus = [{"utilization.gpu": 37, "memory.used": 2}, {"utilization.gpu": None, "memory.used": None}]
    _fake_gpustat(monkeypatch, lambda: gpus)
    sample = LoadMeter()()
    assert sample.rss_bytes > 1 << 20
    assert sample.cpu_percent >= 0
    assert sample.gpu_percent[0] == 37.0
    assert math.isnan(sample.gpu_percent[1])
    assert sample.gpu_memory_bytes == (2 << 20, 0)


class NVMLError_LibraryNotFound(Exception):  # as the bindings of NVML call it
    pass


def _no_driver():
    raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")


def _broken_driver():
    raise RuntimeError("Driver/library version mismatch")


@pytest.mark.parametrize(
    ("query", "reason", "level"),
    [
        (_no_driver, "NVML Shared Library Not Found", "INFO"),
        (_broken_driver, "version mismatch", "WARNING"),
        (list, "the driver lists none", "WARNING"),
        (None, "No GPU is sampled", "WARNING"),  # gpustat is missing
    ],
)
def test_absent_gpu_is_said_once_and_not_asked_for_again(
    monkeypatch, fresh_gpu_search, caplog, query, reason, level
):
    asked = []
    _fake_gpustat(monkeypatch, lambda: asked.append(1) or query())
    if query is None:
        monkeypatch.setitem(sys.modules, "gpustat", None)
    with caplog.at_level(logging.INFO):
        for _ in range(2):  # two runs in one process
            meter = LoadMeter()
            assert meter().gpu_percent == meter().gpu_percent == ()
    assert len(asked) == (query is not None)
    assert [record.levelname for record in caplog.records] == [level]
    assert reason in caplog.text


def test_a_sampler_whose_thread_the_system_does_not_start_says_what_helps(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="thread 'overlap_train-sampler' could not be started"):
        Sampler()
