"""Spans and samples as a picture and as a trace."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from overlap_train.monitoring.timeline import merged_bars, save_chrome_trace, save_timeline
from overlap_train.records import Sample, Span
from tests.support.values import Unprintable


def _train(start_s: float, end_s: float, epoch: int = 0, name: str = "train") -> Span:
    return Span(name, "main", start_s, end_s, epoch)


BARS = {
    "many short steps": ([_train(i / 100, i / 100 + 0.009) for i in range(100)], [("train", 0, 0, 0, 0.999)]),
    "a gap wider than a pixel": (
        [_train(0, 1), _train(1.2, 2)],
        [("train", 0, 0, 0, 1), ("train", 0, 0, 1.2, 2)],
    ),
    "other epochs and names": (
        [_train(0, 1), _train(1, 1.01, name="snapshot"), _train(1.01, 2, epoch=1)],
        [("train", 0, 0, 0, 1), ("snapshot", 0, 0, 1, 1.01), ("train", 1, 0, 1.01, 2)],
    ),
    "across what is narrower than a pixel": (
        [_train(0, 1), _train(1, 1.01, name="snapshot"), _train(1.01, 2)],
        [("train", 0, 0, 0, 2), ("snapshot", 0, 0, 1, 1.01)],
    ),
    "inside another, also from its begin on": (
        [_train(0, 1, name="in"), _train(0, 3, name="out"), _train(2, 3, name="in"), _train(3, 4)],
        [("out", 0, 0, 0, 3), ("in", 0, 1, 0, 1), ("in", 0, 1, 2, 3), ("train", 0, 0, 3, 4)],
    ),
}


@pytest.mark.parametrize(("spans", "expected"), BARS.values(), ids=BARS)
def test_steps_become_bars_where_no_pixel_lies_between(spans, expected):
    bars = merged_bars(spans, pixel_s=0.1)["main"]
    assert [(bar.name, bar.epoch, bar.depth, bar.start_s, bar.end_s) for bar in bars] == expected


plt_figure = pytest.importorskip("matplotlib.figure")


def _run(epochs: int, workers: int = 2, epoch_s: float = 2.0) -> list[Span]:
    spans = []
    for epoch in range(epochs):
        start_s = 50 + epoch * epoch_s
        spans.append(Span("train", "main", start_s, start_s + 0.98 * epoch_s, epoch))
        spans.append(Span("snapshot", "main", start_s + 0.98 * epoch_s, start_s + 0.981 * epoch_s, epoch))
        for worker in range(workers):
            began_s = start_s + epoch_s
            spans.append(Span("validate", f"worker-{worker}", began_s, began_s + 0.3 * epoch_s, epoch))
    return spans


@pytest.fixture
def figures(monkeypatch):
    """Collects the figures that are drawn, to look at what is on them."""
    drawn = []
    original = plt_figure.Figure.savefig

    def savefig(figure, *args, **kwargs):
        drawn.append(figure)
        return original(figure, *args, **kwargs)

    monkeypatch.setattr(plt_figure.Figure, "savefig", savefig)
    return drawn


def _texts(axis) -> list[str]:
    return [text.get_text() for text in axis.texts]


def _legend(axis) -> list[str]:
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_picture_has_a_row_for_each_thread_and_the_load_below(tmp_path, figures):
    samples = [Sample(50.0 + i, 150.0, 1 << 30, (30.0, math.nan)) for i in range(6)]
    path = save_timeline(tmp_path / "new" / "timeline.png", _run(3), samples, title="three epochs")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(path.parent) == ["timeline.png"]
    rows, cpu, gpu = figures[0].axes
    assert [label.get_text() for label in rows.get_yticklabels()] == ["main", "worker-0", "worker-1"]
    assert _legend(rows) == ["train 5.9 s", "validate 1.8 s", "snapshot 6.0 ms"]
    assert cpu.get_ylabel().startswith("CPU %")
    assert _legend(gpu) == ["GPU 0", "GPU 1"]
    assert (
        figures[0].get_suptitle() == "three epochs · 67% of the validation ran during training"
    )  # not the last
    assert gpu.get_xlabel() == "time (s)"


@pytest.mark.parametrize(("epochs", "numbers"), [(3, [1, 2, 3]), (1000, [])])
def test_epochs_are_numbered_from_1_where_there_is_room(tmp_path, figures, epochs, numbers):
    save_timeline(tmp_path / "t.png", _run(epochs, workers=0))
    assert [int(text) for text in _texts(figures[0].axes[0])] == numbers


def test_span_shorter_than_a_pixel_is_wide_enough_to_be_seen(tmp_path, figures):
    spans = [Span("train", "m", 0, 1000, 0), Span("snapshot", "m", 500, 500 + 1e-5, 0)]
    save_timeline(tmp_path / "t.png", spans)
    axis = figures[0].axes[0]
    lefts = [path.vertices[:, 0].min() for path in axis.collections[0].get_paths()]
    rights = [path.vertices[:, 0].max() for path in axis.collections[0].get_paths()]
    pixels = (
        (rights[1] - lefts[1]) / (axis.get_xlim()[1] - axis.get_xlim()[0]) * axis.get_window_extent().width
    )
    assert pixels >= 1


@pytest.mark.parametrize("samples", [(), (Sample(1.0, 50.0, 1), Sample(2.0, 50.0, 1))])
def test_run_without_spans_is_said_and_not_an_error(tmp_path, figures, samples):
    save_timeline(tmp_path / "t.png", [], samples)
    assert _texts(figures[0].axes[0]) == ["no spans were recorded"]


def test_unknown_format_is_an_error_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in one of .*png"):
        save_timeline(tmp_path / "timeline.xyz", _run(1))
    assert os.listdir(tmp_path) == []


@pytest.mark.nightly
def test_neither_importing_nor_drawing_loads_what_it_does_not_need(tmp_path):
    """The figures of pyplot are the user's."""
    heavy = "tensorflow", "matplotlib", "gpustat", "pynvml"
    script = (
        f"import sys, overlap_train.monitoring; print([m for m in {heavy} if m in sys.modules]);"
        f"overlap_train.monitoring.save_timeline({str(tmp_path / 't.png')!r}, []);"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["[]", "False"]


def _events(path, kind: str) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    trace = json.loads(path.read_text(), parse_constant=refuse)
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_spans_are_in_microseconds_from_the_first_on_and_threads_in_the_order_of_the_timeline(tmp_path):
    spans = [
        Span("validate", "worker-0", 101.5, 102.0, 0, None, {"shard": 1}),
        Span("train", "zmain", 100.0, 101.0, 0, 40),
    ]
    path = save_chrome_trace(tmp_path / "new" / "trace.json", spans)
    assert [
        {key: event[key] for key in ("name", "tid", "ts", "dur", "args")} for event in _events(path, "X")
    ] == [
        {"name": "train", "tid": 1, "ts": 0.0, "dur": 1e6, "args": {"epoch": 0, "step": 40}},
        {"name": "validate", "tid": 2, "ts": 1.5e6, "dur": 5e5, "args": {"epoch": 0, "shard": 1}},
    ]
    assert [(event["name"], event["tid"], event["args"]) for event in _events(path, "M")] == [
        ("process_name", 1, {"name": "overlap_train"}),
        ("thread_name", 1, {"name": "zmain"}),
        ("thread_sort_index", 1, {"sort_index": 1}),
        ("thread_name", 2, {"name": "worker-0"}),
        ("thread_sort_index", 2, {"sort_index": 2}),
    ]
    assert _events(save_chrome_trace(tmp_path / "empty.json", []), "X") == []


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


@pytest.mark.parametrize("value", [math.nan, object(), b"bytes", Unprintable()])
def test_detail_that_json_lacks_or_that_cannot_be_printed_does_not_cost_the_trace(tmp_path, value):
    details = {"what": value, Unprintable(): 1}
    path = save_chrome_trace(tmp_path / "trace.json", [Span("train", "m", 0, 1, details=details)])
    shown, other = _events(path, "X")[0]["args"].items()
    assert shown[0] == "what"
    assert "Unprintable" in (shown[1] if isinstance(value, Unprintable) else other[0])
    assert isinstance(value, Unprintable) or shown[1] == str(value)
