"""Load generators load, say how much, and end with everything that they started."""

from __future__ import annotations

import os
import threading

import pytest

from scripts.bench.load import DutyCycle, GpuLoad, SpinLoad


def test_spinning_processes_say_what_they_took_and_end():
    with SpinLoad(1.0, cores=1) as load:
        children = [child.pid for child in load._children]
        while load.achieved < 1e-3:
            threading.Event().wait(0.01)
    assert load.achieved > 0  # over a moment, starting the process weighs more than spinning
    assert load.achieved == load.achieved
    for pid in children:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    load.close()


def test_a_duty_cycle_works_and_rests():
    calls, enough = [], threading.Event()

    def work():
        calls.append(1)
        if len(calls) >= 5:
            enough.set()

    with DutyCycle(0.5, work) as load:
        assert enough.wait(60)
    assert 0 < load.achieved < 1
    assert not any(thread.name == "duty-cycle" for thread in threading.enumerate())


def test_no_duty_does_no_work():
    with DutyCycle(0.0, lambda: pytest.fail("called")) as load:
        threading.Event().wait(0.03)
    assert load.achieved < 0.5


def test_what_the_work_raises_is_raised_on_close():
    def broken():
        raise RuntimeError("no such kernel")

    load = DutyCycle(0.5, broken)
    load._thread.join(60)
    with pytest.raises(RuntimeError, match="no such kernel"):
        load.close()
    load.close()


@pytest.mark.parametrize(
    "make", [lambda: SpinLoad(1.5), lambda: DutyCycle(-1, print), lambda: SpinLoad(1, cores=0)]
)
def test_loads_that_cannot_be_are_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_gpu_load_needs_its_gpu():
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a GPU; the test is about its absence")
    with pytest.raises(ValueError, match="no device 'GPU:0'"):
        GpuLoad(0.5)
