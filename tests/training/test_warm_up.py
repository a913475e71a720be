"""A function is prepared on a thread of its own, which is waited for and tells nothing."""

from __future__ import annotations

import gc
import threading
import weakref

import keras
import pytest

from overlap_train import Trainer
from overlap_train._training import planner
from overlap_train._training.planner import WarmUp
from tests import networks


def test_it_runs_on_another_thread_and_is_waited_for():
    begin, ran = threading.Event(), []

    def work():
        begin.wait()
        ran.append(threading.current_thread())

    warm_up = WarmUp(work)
    assert not ran
    begin.set()
    assert warm_up.wait() >= 0
    assert warm_up.wait() >= 0, "again"
    assert ran[0] is not threading.current_thread()


def test_what_goes_wrong_is_not_told():
    def work():
        raise RuntimeError("comes again with the first call")

    WarmUp(work).wait()


def test_it_lets_go_of_its_work():
    class Work:
        def __call__(self):
            pass

    work = Work()
    gone = weakref.ref(work)
    warm_up = WarmUp(work)
    warm_up.wait()
    del work
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("wrong", [None, "validation"])
def test_a_loop_is_prepared_once_and_no_thread_is_left(monkeypatch, wrong):
    begun = []

    class Watched(WarmUp):
        def __init__(self, work):
            super().__init__(work)
            begun.append(self)

    monkeypatch.setattr(planner, "WarmUp", Watched)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(networks.CLASSES)])
    model.compile("sgd", networks.crossentropy())

    class Fails(Trainer):
        def validation_step(self, batch):
            raise LookupError("no such metric")

    trainer = (Fails if wrong else Trainer)(model)
    x, y = networks.arrays(64)
    if wrong:
        with pytest.raises(LookupError, match="no such metric"):
            trainer.fit(x, y, verbose=0, validation_data=(x, y))
    else:
        for _ in range(2):
            trainer.fit(x, y, verbose=0, validation_data=(x, y))
    assert len(begun) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "loop-warm-up"]
