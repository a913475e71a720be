"""Validation data: read when it is due, divided, and kept, or drawn anew where another pass may differ."""

import concurrent.futures
import itertools
import threading

import hypothesis
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from hypothesis import strategies as st

from overlap_train._data import cached_batches
from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._data.validation_data import ArrayBatches, ValidationSource, split_batches
from overlap_train._keras.data import recognize
from tests.data.sources import X, Y, dataset, make, over, sums


def given(*data, **options):
    return ValidationSource(lambda: recognize(*data, role="validation"), now=False, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "object"])
def test_rows_are_read_when_they_are_asked_for_and_once(dtype):
    x = X[:, 0].astype("str").astype(dtype) if dtype == "object" else X.astype(dtype)
    data = given(x, Y)
    assert not data.waits
    assert not data.is_read
    x[0] = x[1]
    assert data.read()
    read = [np.asarray(tensor) for tensor in data.tensors]
    np.testing.assert_array_equal(read[0][0], read[0][1])
    assert [tuple(spec.shape) for spec in data.layout.specs] == [array.shape for array in read]
    assert [spec.dtype for spec in data.layout.specs] == [tensor.dtype for tensor in data.tensors]
    blank = ArrayBatches(data, steps=None).blank
    assert [(spec.shape[0], spec.dtype) for spec in blank] == [(0, t.dtype) for t in data.tensors]
    x[0] = x[2]
    np.testing.assert_array_equal(np.asarray(data.tensors[0]), read[0])


def test_other_shapes_than_were_known_are_told():
    inputs = {"x": X}
    data = given(inputs, Y)
    inputs["x"] = X[:, :1]
    assert not data.read()
    assert data.layout.specs[0]["x"].shape == [13, 1]
    data = given(inputs, Y)
    inputs["x"] = X
    with pytest.raises(ValueError, match="other shapes"):
        _ = data.tensors


def test_what_python_makes_and_sparse_arrays_wait():
    drawn = []

    def batches():
        while True:
            drawn.append(1)
            yield X, Y

    data = given(batches(), by_python=True)
    assert data.waits
    assert not drawn
    assert not data.read()
    assert drawn
    assert not data.waits
    assert data.read()
    assert given(scipy.sparse.csr_matrix(X), Y).waits
    assert not given(dataset()).waits


def test_a_pipeline_that_reads_a_variable_is_drawn_anew_and_names_it():
    """A cache would keep what the variable was when it was filled."""
    scale = tf.Variable(2.0, name="scale")
    batches = make(dataset().map(lambda x, y: (x * scale, y)))
    assert isinstance(batches, StreamedBatches)
    assert batches.reads == ["scale"]
    firsts = []
    for value in (2.0, 3.0):
        scale.assign(value)
        firsts.append(batches.begin().draw()[0].numpy())
    np.testing.assert_array_equal(firsts[1] / 3, X[:5])
    np.testing.assert_array_equal(firsts[0] / 2, X[:5])
    assert make(dataset(), cache_bytes=0).reads == []


def test_what_does_not_fit_or_cannot_repeat_is_drawn_anew():
    """The size is that of the batches that are evaluated."""
    python = tf.data.Dataset.from_generator(lambda: iter([X]), output_signature=tf.TensorSpec([13, 2]))
    batch_bytes = 5 * (8 + 8)
    for kind, data, options in [
        (CachedBatches, dataset(), {"cache_bytes": 3 * batch_bytes}),
        (StreamedBatches, dataset(), {"cache_bytes": 3 * batch_bytes - 1}),
        (CachedBatches, dataset(), {"cache_bytes": batch_bytes, "steps": 1}),
        (CachedBatches, dataset().repeat(), {"steps": 2}),
        (StreamedBatches, python, {}),
    ]:
        assert isinstance(make(data, **options), kind)


def test_endless_data_is_refused():
    with pytest.raises(ValueError, match=r"never ends; pass validation_steps=.*take"):
        make(dataset().repeat())


@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("rows", [lambda: dataset().take(0), lambda: dataset().filter(lambda x, y: False)])
def test_a_dataset_without_a_batch_is_one(rows, steps):
    batches = make(rows(), steps=steps)
    if isinstance(batches, StreamedBatches):
        assert batches.begin().draw() is None
    assert batches.last_count == 0
    kept = CachedBatches(rows(), steps)
    assert (kept.fill(), kept.num_batches, len(kept.held)) == (0, 0, len(kept.data_spec))


@pytest.mark.parametrize("steps", [None, 1, 2, 9])
def test_array_batches_end_with_a_smaller_one(steps):
    batches = make(X, Y, batch_size=5, steps=steps)
    assert isinstance(batches, ArrayBatches)
    assert batches.num_batches == min(steps or 3, 3)
    assert sums(batches, 0, batches.num_batches)[1] == min(13, 5 * (steps or 3))
    assert batches.element_spec[0].shape.as_list() == [None, 2]
    assert make(X[:10], Y[:10], batch_size=5).element_spec[0].shape.as_list() == [5, 2]


def test_parts_run_side_by_side():
    """Each of two parts waits, in its first batch, until the other has begun."""
    batches = CachedBatches(dataset(2), steps=None)
    count = batches.fill()
    both = threading.Barrier(2)

    def meet(index):
        both.wait(timeout=60)
        return index

    total, firsts = tf.Variable(0.0), [float(X[2 * s.first, 0]) for s in split_batches(count, 2)]

    def step(batch):
        x = tf.cond(
            tf.reduce_any(batch[0][0, 0] == firsts),
            lambda: tf.py_function(meet, [batch[0]], tf.float32),
            lambda: batch[0],
        )
        return [total.assign_add(tf.reduce_sum(x) + 1.0, read_value=True)]

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        list(executor.map(lambda s: over(batches, step, s.first, s.stop, 0.0), split_batches(count, 2)))
    assert float(total) == X.sum() + count


@pytest.fixture(params=["all by Python", "all but one compiled"])
def drawn_by(request, monkeypatch):
    if request.param != "all by Python":
        monkeypatch.setattr(cached_batches, "_ONE_BY_ONE", 1)


@pytest.mark.usefixtures("drawn_by")
@pytest.mark.parametrize("count", [63, 64, 65, 200])
def test_every_batch_is_kept_whoever_draws_it(count):
    batches = CachedBatches(tf.data.Dataset.range(count).batch(1), steps=None)
    assert batches.fill() == count
    kept = [int(batches.fold.batch(batches.held, index)[0]) for index in range(count)]
    assert kept == list(range(count))


@pytest.mark.parametrize("batches", [lambda: make(X, Y, batch_size=2), lambda: make(dataset(2))])
def test_parts_add_up_to_the_whole(batches):
    batches = batches()
    count = batches.fill() if isinstance(batches, CachedBatches) else batches.num_batches
    whole = sums(batches, 0, count)
    parts = [sums(batches, s.first, s.stop) for s in split_batches(count, 3)]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole)
    assert whole == [7, 13, X.sum()]


def test_a_cache_is_filled_once_however_many_threads_ask():
    drawn = tf.Variable(0)

    def count(x, y):
        drawn.assign_add(1)
        return x, y

    batches = CachedBatches(dataset().map(count), steps=None)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: batches.fill(), range(4))) == [3] * 4
    assert sums(batches, 1, 3)[0] == 2
    assert int(drawn) == 3


@pytest.mark.usefixtures("drawn_by")
@pytest.mark.parametrize("row", [0, 4])
def test_data_that_fails_fails_whenever_it_is_asked_for(row):
    """An iterator goes on behind the batch that failed, and would leave it out."""

    def check(number):
        tf.debugging.assert_none_equal(number, tf.constant(row, tf.int64), message="bad row")
        return number

    batches = CachedBatches(tf.data.Dataset.range(8).map(check).batch(2), steps=None)
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad row"):
            batches.fill()
    assert batches.num_batches is None


def test_batches_of_any_kind_are_kept_as_they_are():
    rows = (
        {"ragged": tf.ragged.constant([[1, 2], [3], [4, 5, 6]]), "sparse": tf.sparse.eye(3), "none": None},
        tf.constant(["a", "b", "c"]),
    )
    made = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    batches = CachedBatches(made, steps=None)
    assert batches.fill() == 2

    def join(batch):
        return [tf.strings.reduce_join(batch[1])]

    assert over(batches, join, 0, 1, tf.constant("")) == b"ab"
    assert over(batches, join, 0, 2, tf.constant("")) == b"c", "the last one's"
    assert over(batches, join, 2, 2, tf.constant("none")) == b"none"
    for index, expected in enumerate(made):
        kept = batches.fold.batch(batches.held, index)
        tf.nest.assert_same_structure(kept, expected, expand_composites=True)
        for a, b in zip(*(tf.nest.flatten(x, expand_composites=True) for x in (kept, expected)), strict=True):
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
            np.testing.assert_array_equal(a, b)


def test_numbers_of_other_batches_are_not_close_as_hosts_compare_them():
    data = [tf.data.Dataset.from_tensors([row, row * row]) for row in range(100)]
    rows = [CachedBatches(each, steps=None).numbers() for each in data]
    close = [np.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in itertools.combinations(rows, 2)]
    assert not any(close)


@hypothesis.example(0, 3)
@hypothesis.given(st.integers(0, 10_000), st.integers(1, 100))
def test_shards_cover_every_batch_once_and_evenly(num_batches, parts):
    shards = split_batches(num_batches, parts)
    covered = list(itertools.chain.from_iterable(range(s.first, s.stop) for s in shards))
    assert covered == list(range(num_batches))
    lengths = [s.stop - s.first for s in shards]
    assert len(shards) == min(parts, num_batches)
    assert not lengths or max(lengths) - min(lengths) <= 1
    assert all(lengths)
