from __future__ import annotations

import json
import math

import pytest

from overlap_train.monitoring.recorder import SpanRecorder
from overlap_train.monitoring.trace import save_chrome_trace
from overlap_train.records import Sample, Span
from tests.support.values import Unprintable


def _events(path, kind: str) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    trace = json.loads(path.read_text(), parse_constant=refuse)
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_spans_are_in_microseconds_from_the_first_on(tmp_path):
    spans = [
        Span("validate", "worker-0", 101.5, 102.0, 0, None, {"shard": 1}),
        Span("train", "main", 100.0, 101.0, 0, 40),
    ]
    path = save_chrome_trace(tmp_path / "new" / "trace.json", spans)
    assert [
        {key: event[key] for key in ("name", "tid", "ts", "dur", "args")} for event in _events(path, "X")
    ] == [
        {"name": "train", "tid": 1, "ts": 0.0, "dur": 1e6, "args": {"epoch": 0, "step": 40}},
        {"name": "validate", "tid": 2, "ts": 1.5e6, "dur": 5e5, "args": {"epoch": 0, "shard": 1}},
    ]


def test_threads_have_their_names_and_the_order_of_the_timeline(tmp_path):
    spans = [Span("validate", "worker-0", 0, 1), Span("train", "zmain", 0, 1)]
    metadata = _events(save_chrome_trace(tmp_path / "trace.json", spans), "M")
    assert [(event["name"], event["tid"], event["args"]) for event in metadata] == [
        ("process_name", 1, {"name": "overlap_train"}),
        ("thread_name", 1, {"name": "zmain"}),
        ("thread_sort_index", 1, {"sort_index": 1}),
        ("thread_name", 2, {"name": "worker-0"}),
        ("thread_sort_index", 2, {"sort_index": 2}),
    ]


def test_load_becomes_counters_and_an_unknown_value_is_left_out(tmp_path):
    samples = [Sample(5.0, 150.0, 3 << 20, (40.0, math.nan), (1 << 20, 0))]
    counters = _events(save_chrome_trace(tmp_path / "trace.json", [Span("train", "m", 4, 6)], samples), "C")
    assert {event["name"]: event["args"]["value"] for event in counters} == {
        "CPU percent": 150.0,
        "Resident memory MiB": 3.0,
        "GPU 0 percent": 40.0,
        "GPU 0 memory MiB": 1.0,
        "GPU 1 memory MiB": 0.0,
    }
    assert {event["ts"] for event in counters} == {1e6}


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), b"bytes", {"a": 1}, ("t",)])
def test_detail_that_json_lacks_does_not_cost_the_trace(tmp_path, value):
    path = save_chrome_trace(tmp_path / "trace.json", [Span("train", "m", 0, 1, details={"what": value})])
    assert _events(path, "X")[0]["args"]["what"] == str(value)


def test_detail_that_cannot_be_printed_does_not_cost_the_trace(tmp_path):
    spans = [Span("a", "m", 0, 1, details={"what": Unprintable(), Unprintable(): 1}), Span("b", "m", 0, 1)]
    what, other = _events(save_chrome_trace(tmp_path / "trace.json", spans), "X")[0]["args"]
    assert what == "what"
    assert "Unprintable" in other


def test_sample_without_a_time_is_refused(tmp_path):
    with pytest.raises(ValueError, match="time_s of samples must be finite"):
        save_chrome_trace(tmp_path / "trace.json", [], [Sample(math.nan, 1.0, 1)])
    assert list(tmp_path.iterdir()) == []


def test_nested_spans_lie_inside_each_other_after_rounding(tmp_path):
    recorder = SpanRecorder()
    with recorder.span("outer"), recorder.span("inner"):
        pass
    outer, inner = _events(save_chrome_trace(tmp_path / "trace.json", recorder.spans()), "X")
    assert (outer["name"], inner["name"]) == ("outer", "inner")
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 2e-3


def test_nothing_recorded_is_an_empty_trace(tmp_path):
    path = save_chrome_trace(tmp_path / "trace.json", [])
    assert _events(path, "X") == []
