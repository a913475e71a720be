"""Spans, how long two kinds of them overlap, and the accounts of epochs."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_train.monitoring.recorder import Accounts, SpanRecorder, overlap_s, saved_s, union_s
from overlap_train.records import EpochAccount, Span


def _spans(*intervals: tuple[float, float]) -> list[Span]:
    return [Span("work", "t", start, end) for start, end in intervals]


def _ticking() -> SpanRecorder:
    ticks = itertools.count()
    return SpanRecorder(clock=lambda: float(next(ticks)))


def test_span_carries_everything_that_was_said():
    recorder = _ticking()
    before = recorder.spans()
    with recorder.span("validate", epoch=3, step=0, shard=1, name="a") as span:
        span.note(batches=7)
    details = {"shard": 1, "name": "a", "batches": 7}
    assert recorder.spans() == (Span("validate", threading.current_thread().name, 0.0, 1.0, 3, 0, details),)
    assert before == (), "a reader has a copy"


def test_span_is_kept_when_its_body_raises():
    recorder = _ticking()
    with pytest.raises(RuntimeError, match="boom"), recorder.span("train", epoch=0):
        raise RuntimeError("boom")
    assert recorder.spans()[0].details == {"error": "RuntimeError"}


def test_no_span_is_lost_or_counted_twice_when_threads_fill_the_recorder_together():
    recorder = SpanRecorder(max_spans=1500)
    go = threading.Event()

    def work() -> None:
        go.wait()
        for step in range(500):
            with recorder.span("train", step=step):
                pass

    threads = [threading.Thread(target=work, name=f"worker-{i}") for i in range(4)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join()
    assert len(recorder.spans()) == 1500
    assert recorder.dropped == 500
    assert {span.thread for span in recorder.spans()} <= {thread.name for thread in threads}


_intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=12).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)


@given(_intervals, _intervals)
def test_overlap_and_union_agree_with_counting_seconds(a, b):
    seconds_a, seconds_b = ({t for start, end in side for t in range(start, end)} for side in (a, b))
    assert union_s(_spans(*a)) == len(seconds_a)
    assert overlap_s(_spans(*a), _spans(*b)) == len(seconds_a & seconds_b)


def span(name, start, end, epoch):
    return Span(name, "t", float(start), float(end), epoch)


@pytest.fixture
def accounts():
    """Accounts whose clock a test sets: `accounts.now_s`."""
    made = Accounts(0.0, clock=lambda: made.now_s)
    made.now_s = 0.0
    return made


def train(accounts, epoch, start_s, end_s, steps=1):
    accounts.now_s = start_s
    accounts.begin(epoch)
    accounts.train(epoch)
    accounts.trained(span("train", start_s, end_s, epoch), steps)
    accounts.now_s = end_s


def adds_up(accounts):
    epochs = accounts.closed()
    fit = accounts.fit(epochs)
    return fit.fit_s == pytest.approx(
        fit.prepared_s + fit.undelivered_s + sum(epoch.seconds for epoch in epochs)
    )


def test_an_epoch_that_is_validated_while_the_next_one_is_trained(accounts):
    accounts.begin(0)
    accounts.trained(span("train", 0, 4, 0), 3)
    accounts.trained(span("train", 5, 6, 0), 2)
    assert accounts.trained_s(0) == 5
    accounts.charge(0, "snapshot_s", 0.5)
    accounts.begin(1)
    accounts.trained(span("train", 7, 9, 1), 5)
    accounts.validated(0, [span("validate", 6, 8, 0), span("validate", 8.5, 10, 0)])
    accounts.charge(0, "waited_s", 1.0)
    accounts.charge(0, "waited_s", 0.25)
    accounts.slow_host(0, 3, 1.5)
    accounts.close(0)
    (account,) = accounts.closed()
    assert (account.slow_host, account.slow_host_s) == (3, 1.5)
    assert (account.epoch, account.steps, account.trained_s) == (0, 5, 5)
    assert account.validated_s == 4, "from the first part's start to the last one's end"
    assert account.hidden_s == 1.5, "beside training calls only"
    assert (account.waited_s, account.snapshot_s) == (1.25, 0.5)


def test_what_is_rolled_back_is_charged_and_forgotten(accounts):
    for epoch in range(3):
        train(accounts, epoch, 10 * epoch, 10 * epoch + 4)
    accounts.charge(2, "snapshot_s", 0.5)
    accounts.now_s = 25
    assert accounts.roll_back(0) == 10 + 5
    accounts.close(0)
    assert (accounts.closed()[0].rolled_back_s, accounts.closed()[0].trained_s) == (15, 4)
    assert adds_up(accounts)
    train(accounts, 1, 40, 41)
    accounts.close(1)
    assert [(account.epoch, account.trained_s) for account in accounts.closed()] == [(0, 4), (1, 1)]
    assert adds_up(accounts)


def test_a_validation_that_the_training_thread_makes_is_waited_for(accounts):
    train(accounts, 0, 0, 4)
    accounts.now_s = 7
    accounts.validated(0, [span("validate", 4, 6, 0)], delivering=True)
    accounts.charge(0, "delivered_s", 3)
    accounts.close(0)
    (account,) = accounts.closed()
    assert (account.validated_s, account.hidden_s, account.waited_s, account.delivered_s) == (2, 0, 2, 1)
    assert adds_up(accounts)


def epoch_of(number, validated_s, hidden_s, **seconds):
    return EpochAccount(number, 10, 4.0, validated_s, hidden_s, **seconds)


def calls(*lengths, validated=()):
    """Spans of training calls of ten steps, one after another from 0 on, and of validations."""
    ends = list(itertools.accumulate(lengths))
    trained = [
        Span("train", "t", end - length, end, 0, 0, {"steps": 10})
        for length, end in zip(lengths, ends, strict=True)
    ]
    return [*trained, *(span("validate", *interval, 0) for interval in validated)]


SAVED = {
    "in step nothing is": ([epoch_of(0, 3, 0, waited_s=3.0)], calls(9, 4, validated=[(13, 16)]), 0),
    "all of a validation that slows nothing down": (
        [epoch_of(0, 3, 3), epoch_of(1, 2, 0, waited_s=2.0)],
        calls(9, 4, 4, validated=[(13, 16), (17, 19)]),
        2,
    ),
    "but for what the training was slower": (
        [epoch_of(0, 3, 3), epoch_of(1, 2, 0, waited_s=2.0)],
        calls(9, 4, 5, validated=[(13, 16), (18, 20)]),
        2 - 1,
    ),
    "and for what was waited": (
        [epoch_of(0, 5, 4, waited_s=1.0), epoch_of(1, 2, 0, waited_s=2.0)],
        calls(9, 4, 4, validated=[(13, 18), (18, 20)]),
        2 - 1,
    ),
    "and for what was rolled back": (
        [epoch_of(0, 3, 3, rolled_back_s=4.0), epoch_of(1, 2, 0, waited_s=2.0)],
        calls(9, 4, 4, 4, validated=[(13, 16), (21, 23)]),
        2 - 4,
    ),
    "unknown where no call was undisturbed": (
        [epoch_of(0, 3, 3), epoch_of(1, 2, 0, waited_s=2.0)],
        calls(9, 4, validated=[(9, 13), (13, 15)]),
        None,
    ),
    "unknown where no validation was alone": (
        [epoch_of(0, 3, 3)],
        calls(9, 4, 4, validated=[(13, 16)]),
        None,
    ),
}


@pytest.mark.parametrize(("epochs", "spans", "seconds"), SAVED.values(), ids=SAVED)
def test_what_was_saved_is_a_validation_alone_less_what_it_has_cost(epochs, spans, seconds):
    assert saved_s(epochs, spans) == (None if seconds is None else pytest.approx(seconds))
