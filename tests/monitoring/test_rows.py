from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlap_train.monitoring.recorder import union_s
from overlap_train.monitoring.rows import merged_bars, thread_order
from overlap_train.records import Span


def _train(start_s: float, end_s: float, epoch: int = 0, name: str = "train") -> Span:
    return Span(name, "main", start_s, end_s, epoch)


def _bars(*spans: Span, pixel_s: float = 0.1) -> list[tuple]:
    bars = merged_bars(spans, pixel_s=pixel_s)["main"]
    return [(bar.name, bar.epoch, bar.depth, bar.start_s, bar.end_s) for bar in bars]


def test_training_thread_comes_first_and_worker_2_before_worker_10():
    names = ["worker-10", "worker-2", "a", "zmain", "2", "worker"]
    spans = [Span("train" if name == "zmain" else "validate", name, 0, 1) for name in names]
    assert thread_order(spans) == ["zmain", "2", "a", "worker", "worker-2", "worker-10"]


def test_many_short_steps_become_one_bar():
    steps = [_train(i / 100, i / 100 + 0.009) for i in range(100)]
    assert _bars(*steps) == [("train", 0, 0, 0.0, 0.999)]


def test_gap_wider_than_a_pixel_stays_visible():
    assert len(_bars(_train(0, 1), _train(1.2, 2))) == 2


def test_epochs_and_names_are_not_merged():
    spans = (_train(0, 1), _train(1, 1.01, name="snapshot"), _train(1.01, 2, epoch=1))
    assert [bar[:2] for bar in _bars(*spans)] == [("train", 0), ("snapshot", 0), ("train", 1)]


def test_steps_are_merged_across_what_is_narrower_than_a_pixel():
    spans = (_train(0, 1), _train(1, 1.01, name="snapshot"), _train(1.01, 2))
    assert [(bar[0], *bar[3:]) for bar in _bars(*spans)] == [("train", 0, 2), ("snapshot", 1, 1.01)]


def test_span_inside_another_lies_deeper_also_when_it_begins_with_it():
    spans = (_train(0, 1, name="inner"), _train(0, 3, name="outer"), _train(2, 3, name="inner"), _train(3, 4))
    assert [(bar[0], bar[2]) for bar in _bars(*spans)] == [
        ("outer", 0),
        ("inner", 1),
        ("inner", 1),
        ("train", 0),
    ]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.integers(0, 1)), max_size=20))
def test_without_pixels_merging_keeps_the_time_covered(triples):
    spans = [_train(start, start + length, epoch) for start, length, epoch in triples]
    bars = merged_bars(spans, pixel_s=0).get("main", [])
    assert union_s([_train(bar.start_s, bar.end_s) for bar in bars]) == union_s(spans)
