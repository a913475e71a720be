"""algorithm="auto": what it times, what it chooses, what it reports."""

from __future__ import annotations

import pytest
import tensorflow as tf

from overlap_train.conv import format_report, report, selection, tiled_conv2d
from overlap_train.conv.shapes import STOCK, ConvKey

KEY = ConvKey("filter_gradient", "float32", (1, 9, 7, 3), (3, 3, 3, 4), (1, 1), "SAME")


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
def test_the_fastest_is_chosen(slow: set[str], chosen: str) -> None:
    assert selection.choose(KEY, work_where(slow)) == chosen


def test_a_shape_is_timed_once() -> None:
    selection.choose(KEY, work_where({STOCK}))

    def never(_: str):
        raise AssertionError("timed again")

    selection.choose(KEY, never)


def test_the_report_shows_both_even_where_tensorflow_won() -> None:
    selection.choose(KEY, work_where({"direct", "winograd"}))
    (row,) = report()
    assert row.chosen == STOCK
    assert set(row.milliseconds) == {STOCK, "direct", "winograd"}
    assert row.speedup == 1
    assert row.best_of_ours < 1
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


@pytest.mark.usefixtures("native")
def test_an_unknown_batch_is_marked_in_the_report() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 6, 6, 2])])
    def run(x):
        return tiled_conv2d(x, tf.zeros([3, 3, 2, 2]), batch_hint=4)

    run(tf.zeros([1, 6, 6, 2]))
    (row,) = report()
    assert row.key.batch_assumed
    assert row.key.input_shape[0] == 4
    assert "4?" in format_report()
