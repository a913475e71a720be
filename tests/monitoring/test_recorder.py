"""Spans, how long two kinds of them overlap, and the accounts of epochs."""

from __future__ import annotations

import itertools
import math
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_train.monitoring.recorder import Accounts, SpanRecorder, overlap_s, union_s
from overlap_train.records import Span


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


def test_nested_spans_come_in_order_of_start_though_the_inner_ends_first():
    recorder = _ticking()
    with recorder.span("outer"), recorder.span("inner"):
        pass
    assert [span.name for span in recorder.spans()] == ["outer", "inner"]


def test_full_recorder_counts_what_it_drops_and_starts_anew_after_clear():
    recorder = SpanRecorder(max_spans=2)
    for span in _spans((0, 1), (1, 2), (2, 3)):
        recorder.add(span)
    assert (len(recorder.spans()), recorder.dropped) == (2, 1)
    recorder.clear()
    assert (recorder.spans(), recorder.dropped) == ((), 0)


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


@pytest.mark.parametrize(
    ("span", "error", "message"),
    [
        (Span("a", "t", math.nan, 1.0), ValueError, "start_s of spans_b must be finite; got nan"),
        (Span("a", "t", 0.0, 10**400), ValueError, "end_s of spans_b must be finite"),
        (Span("a", "t", None, 1.0), TypeError, "start_s of spans_b must be a number; got None"),
        (Span("a", "t", 0.0, True), TypeError, "end_s of spans_b must be a number; got True"),
        (Span(b"a", "t", 0.0, 1.0), TypeError, "spans_b must have text as name and thread; got b'a' and 't'"),
    ],
)
def test_a_span_that_no_work_has_made_is_refused_by_name(span, error, message):
    with pytest.raises(error, match=re.escape(message)):
        overlap_s([], [Span("a", "t", 0.0, 1.0), span])


@pytest.mark.parametrize(
    ("a", "b", "both_s"),
    [
        ([], [(0, 1)], 0),
        ([(0, 1)], [(1, 2)], 0),
        ([(0, 10)], [(2, 3), (4, 6)], 3),
        ([(0, 4), (2, 6)], [(3, 5)], 2),
        ([(0, 6)], [(1, 3), (2, 4), (1, 2)], 3),
        ([(5, 6), (0, 1)], [(0, 6)], 2),
        ([(0, 0)], [(0, 1)], 0),
    ],
)
def test_overlap_counts_each_moment_once(a, b, both_s):
    assert overlap_s(_spans(*a), _spans(*b)) == both_s
    assert overlap_s(_spans(*b), _spans(*a)) == both_s


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


def test_an_epoch_that_is_validated_while_the_next_one_is_trained():
    accounts = Accounts()
    accounts.begin(0)
    accounts.trained(span("train", 0, 4, 0), 3)
    accounts.trained(span("train", 5, 6, 0), 2)
    assert accounts.trained_s(0) == 5
    accounts.add(0, "snapshot_s", 0.5)
    accounts.begin(1)
    accounts.trained(span("train", 7, 9, 1), 5)
    accounts.validated(0, [span("validate", 6, 8, 0), span("validate", 8.5, 10, 0)])
    accounts.add(0, "waited_s", 1.0)
    accounts.add(0, "waited_s", 0.25)
    accounts.slow_host(0, 3, 1.5)
    account = accounts.close(0)
    assert (account.slow_host, account.slow_host_s) == (3, 1.5)
    assert (account.epoch, account.steps, account.trained_s) == (0, 5, 5)
    assert account.validated_s == 4, "from the first part's start to the last one's end"
    assert account.hidden_s == 1.5, "beside training calls only"
    assert (account.waited_s, account.snapshot_s) == (1.25, 0.5)
    assert accounts.closed() == [account]


def test_what_is_rolled_back_is_told_and_forgotten():
    accounts = Accounts()
    for epoch in range(3):
        accounts.begin(epoch)
        accounts.trained(span("train", 10 * epoch, 10 * epoch + 4, epoch), 1)
    assert accounts.drop_after(0) == 8
    accounts.add(0, "rolled_back_s", 8)
    assert accounts.close(0).rolled_back_s == 8
    accounts.begin(1)
    accounts.trained(span("train", 40, 41, 1), 1)
    assert accounts.close(1).trained_s == 1
    assert [account.epoch for account in accounts.closed()] == [0, 1]


def test_closed_epochs_keep_no_spans():
    accounts = Accounts()
    for epoch in range(50):
        accounts.begin(epoch)
        accounts.trained(span("train", epoch, epoch + 0.5, epoch), 1)
        if epoch:
            accounts.close(epoch - 1)
        assert len(accounts._recent) <= 2


def test_a_name_that_no_account_has_is_refused():
    accounts = Accounts()
    accounts.begin(0)
    accounts.add(0, "lost_s", 1.0)
    with pytest.raises(TypeError, match="lost_s"):
        accounts.close(0)
