"""What the training thread did, when, and to which epoch it counts."""

from __future__ import annotations

import threading

import pytest

from overlap_train._fit import course as module
from overlap_train._fit.course import Course, Ledger
from overlap_train.monitoring.recorder import Accounts, SpanRecorder


@pytest.fixture
def ledger(monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", lambda: 7.0)
    return Ledger(SpanRecorder(), Accounts(), Course(epochs=3, next_epoch=0))


def test_a_span_carries_the_thread_the_epoch_and_the_step_at_its_end(ledger):
    ledger.course.step = 41
    span = ledger.span("train", 5.0, 1, steps=20)
    assert (span.start_s, span.end_s, span.duration_s) == (5.0, 7.0, 2.0)
    assert (span.name, span.epoch, span.step, span.details) == ("train", 1, 41, {"steps": 20})
    assert span.thread == threading.current_thread().name
    assert list(ledger.recorder.spans()) == [span]


def test_what_is_charged_is_recorded_and_counts_to_its_epoch(ledger):
    for epoch in (0, 1):
        ledger.accounts.begin(epoch)
    ledger.charge("wait", 5.0, 1, "waited_s")
    ledger.charge("wait", 6.5, 1, "waited_s")
    for epoch in (0, 1):
        ledger.accounts.close(epoch, skipped=False)
    assert [account.waited_s for account in ledger.accounts.closed()] == [0.0, 2.5]
    assert [span.name for span in ledger.recorder.spans()] == ["wait", "wait"]
