"""algorithm="auto": what it times, chooses, keeps for other processes, and reports."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import tensorflow as tf

from overlap_train.conv import format_report, report, selection, tiled_conv2d
from overlap_train.conv.selection import MATMUL, STOCK, ConvKey, Timing

PLAIN = ConvKey("forward", "float32", (2, 9, 7, 3), (3, 3, 3, 4), (1, 1), "SAME")


@pytest.mark.parametrize(
    ("direction", "window", "channels", "algorithm"),
    [
        ("filter_gradient", (3, 3), 1, "direct"),
        ("filter_gradient", (3, 3), 8, "winograd"),
        ("forward", (3, 3), 1, "winograd"),
        ("filter_gradient", (1, 1), 16, MATMUL),
        ("input_gradient", (5, 5), 16, "direct"),
    ],
)
def test_a_deterministic_process_chooses_by_shape(monkeypatch, direction, window, channels, algorithm):
    monkeypatch.setattr(selection, "ways_are_fixed", lambda: True)
    key = replace(PLAIN, direction=direction, filter_shape=(*window, channels, 16))
    assert selection.choose(key, lambda name: pytest.fail(f"{name} is timed")) == algorithm
    assert selection.report() == ()


@pytest.fixture(autouse=True)
def _forget_timings():
    selection.clear_timings()
    yield
    selection.clear_timings()


def work_where(slow: set[str]):
    """Functions of which those named multiply large matrices, in place of a slow kernel."""

    def compute(algorithm: str):
        size = 700 if algorithm in slow else 1

        def work(first, *_):
            # Of the operands' values, or the graph would hold the finished product.
            matrix = tf.fill([size, size], tf.reduce_sum(first))
            return tf.linalg.matmul(matrix, matrix)

        return work

    return compute


@pytest.mark.parametrize(
    ("slow", "chosen"),
    [({STOCK, "direct"}, "winograd"), ({STOCK, "winograd"}, "direct"), ({"direct", "winograd"}, STOCK)],
)
def test_the_fastest_is_chosen_once_and_reported_even_where_tensorflow_won(
    slow: set[str], chosen: str
) -> None:
    key = replace(PLAIN, direction="filter_gradient", input_shape=(1, 9, 7, 3))
    assert selection.choose(key, work_where(slow)) == chosen
    selection.choose(key, lambda _: pytest.fail("timed again"))
    (row,) = report()
    assert row.chosen == chosen
    assert set(row.milliseconds) == {STOCK, "direct", "winograd"}
    assert (row.best_of_ours < 1) is (chosen == STOCK)
    assert "filter_gradient" in format_report()


@pytest.mark.usefixtures("native")
def test_directions_are_timed_when_they_are_first_needed() -> None:
    x, filters = tf.zeros([1, 6, 6, 2]), tf.zeros([3, 3, 2, 2])
    tiled_conv2d(x, filters)
    assert [row.key.direction for row in report()] == ["forward"]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tiled_conv2d(x, filters)
    tape.gradient(y, x)
    assert "input_gradient" in {row.key.direction for row in report()}


@pytest.mark.usefixtures("native")
def test_timing_leaves_random_numbers_alone() -> None:
    tf.random.set_seed(3)
    want = [tf.random.normal([3]), tf.random.normal([3])]
    tf.random.set_seed(3)
    got = [tf.random.normal([3])]
    tiled_conv2d(tf.zeros([1, 7, 6, 2]), tf.zeros([3, 3, 2, 2]))
    got.append(tf.random.normal([3]))
    for a, b in zip(got, want, strict=True):
        assert (a.numpy() == b.numpy()).all()


FORWARD = ConvKey("forward", "float32", (8, 6, 6, 2), (3, 3, 2, 4), (1, 1), "SAME", bias=True, relu=True)
GRADIENT = ConvKey("filter_gradient", "float64", (8, 6, 6, 2), (5, 3, 2, 4), (2, 1), "VALID")
TIMINGS = {
    FORWARD: Timing(FORWARD, {STOCK: 2.0, "winograd": 1.0, "direct": 3.0}, "winograd"),
    GRADIENT: Timing(GRADIENT, {STOCK: 2.0, "direct": 3.0}, STOCK),
}


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def file_in(home):
    (found,) = home.rglob("*.json")
    return found


def test_what_is_saved_is_loaded_and_added_to():
    assert selection.load_stored() == {}
    selection.store([TIMINGS[FORWARD]])
    selection.store([TIMINGS[GRADIENT]])
    assert selection.load_stored() == TIMINGS
    assert selection.load_stored()[replace(FORWARD, batch_assumed=True)] == TIMINGS[FORWARD]
    selection.remove_stored()
    assert selection.load_stored() == {}
    selection.remove_stored()


def test_other_kernels_have_other_times_and_what_is_no_file_none(monkeypatch, home):
    selection.store([TIMINGS[FORWARD]])
    for name in ("OVERLAP_TRAIN_CONV_ISA", "OVERLAP_TRAIN_CONV_HELPERS"):
        with monkeypatch.context() as other:
            other.setenv(name, "portable")
            assert selection.load_stored() == {}
    file = file_in(home)
    for make in (os.mkfifo, os.mkdir):  # which are not waited for
        file.unlink()
        make(file)
        assert selection.load_stored() == {}
    selection.store([TIMINGS[FORWARD]])
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "")
    selection.store(TIMINGS.values())
    assert selection.load_stored() == {}


ROW = {"key": FORWARD.__dict__, "milliseconds": TIMINGS[FORWARD].milliseconds, "chosen": "winograd"}
NONSENSE = ["", "[null]", "[" * 100_000]
NONSENSE += [
    json.dumps([ROW | change])
    for change in ({"chosen": "fastest"}, {"milliseconds": {STOCK: 1.0, "direct": -1}}, {"key": "forward"})
]


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(home, text):
    selection.store([TIMINGS[FORWARD]])
    file_in(home).write_text(text)
    assert selection.load_stored() == {}
    selection.store([TIMINGS[GRADIENT]])
    assert selection.load_stored() == {GRADIENT: TIMINGS[GRADIENT]}
