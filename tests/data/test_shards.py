"""The validation set is divided at batch boundaries, and its batches are those of `keras.Model.evaluate`."""

from __future__ import annotations

import concurrent.futures
import itertools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from overlap_train.data.kept import ArrayBatches, CachedBatches
from overlap_train.data.shards import make_batches, split_batches
from overlap_train.data.streamed import StreamedBatches

X = np.arange(26, dtype="float32").reshape(13, 2)
Y = np.arange(13)


def make(x, y=None, weight=None, *, batch_size=None, steps=None, cache_bytes=1 << 30):
    return make_batches(x, y, weight, batch_size=batch_size, steps=steps, cache_bytes=cache_bytes)


def dataset(size=5):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def sums(batches, first, stop):
    """Returns the number of batches from `first` to `stop`, their rows and the sum of all values."""

    def step(carried, batch):
        x = tf.nest.flatten(batch)[0]
        return carried + tf.stack([1.0, tf.cast(tf.shape(x)[0], tf.float32), tf.reduce_sum(x)])

    @tf.function(autograph=False)
    def run(held, first, stop):
        return batches.fold(held, first, stop, tf.zeros(3), step)

    if isinstance(batches, CachedBatches):
        batches.fill()
    return run(batches.held, tf.constant(first, tf.int64), tf.constant(stop, tf.int64)).numpy().tolist()


@given(st.integers(0, 10_000), st.integers(1, 100))
def test_shards_cover_every_batch_once_and_evenly(num_batches, parts):
    shards = split_batches(num_batches, parts)
    covered = list(itertools.chain.from_iterable(range(s.first, s.stop) for s in shards))
    assert covered == list(range(num_batches))
    lengths = [s.stop - s.first for s in shards]
    assert [s.index for s in shards] == list(range(min(parts, num_batches)))
    assert not lengths or max(lengths) - min(lengths) <= 1
    assert all(lengths)


@pytest.mark.parametrize("steps", [None, 1, 2, 9])
def test_array_batches_end_with_a_smaller_one(steps):
    batches = make(X, Y, batch_size=5, steps=steps)
    assert isinstance(batches, ArrayBatches)
    assert batches.num_batches == min(steps or 3, 3)
    assert sums(batches, 0, batches.num_batches)[1] == min(13, 5 * (steps or 3))
    assert batches.element_spec[0].shape.as_list() == [None, 2]
    assert make(X[:10], Y[:10], batch_size=5).element_spec[0].shape.as_list() == [5, 2]


def test_parts_add_up_to_the_whole_for_arrays_and_datasets():
    for batches in (make(X, Y, batch_size=2), make(dataset(2))):
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
    threads = [threading.Thread(target=batches.fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batches.num_batches == 3
    assert sums(batches, 1, 3)[0] == 2
    assert int(drawn) == 3


def test_batches_of_any_kind_are_kept_as_they_are():
    rows = (
        {"ragged": tf.ragged.constant([[1, 2], [3], [4, 5, 6]]), "sparse": tf.sparse.eye(3), "none": None},
        tf.constant(["a", "b", "c"]),
    )
    made = tf.data.Dataset.from_tensor_slices(rows).batch(2)
    batches = CachedBatches(made, steps=None)
    assert batches.fill() == 2

    @tf.function(autograph=False)
    def last(held, first, stop):
        return batches.fold(
            held,
            first,
            stop,
            tf.constant(""),
            lambda carried, batch: carried + tf.strings.reduce_join(batch[1]),
        )

    number = [tf.constant(n, tf.int64) for n in (0, 2)]
    assert last(batches.held, *number) == b"abc"
    stream = batches.stream()
    for expected in made:
        kept = stream.draw()
        tf.nest.assert_same_structure(kept, expected, expand_composites=True)
        for a, b in zip(*(tf.nest.flatten(x, expand_composites=True) for x in (kept, expected)), strict=True):
            assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
            np.testing.assert_array_equal(a, b)
    assert stream.draw() is None


def test_parts_run_side_by_side():
    """Each of two parts waits, in its first batch, until the other has begun."""
    batches = CachedBatches(dataset(2), steps=None)
    count = batches.fill()
    both = threading.Barrier(2)

    def meet(index):
        both.wait(timeout=60)
        return index

    def step(carried, batch):
        x = tf.cond(carried == 0.0, lambda: tf.py_function(meet, [batch[0]], tf.float32), lambda: batch[0])
        return carried + tf.reduce_sum(x) + 1.0

    @tf.function(autograph=False)
    def run(held, first, stop):
        return batches.fold(held, first, stop, tf.constant(0.0), step)

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        parts = [[tf.constant(n, tf.int64) for n in (s.first, s.stop)] for s in split_batches(count, 2)]
        sums = list(executor.map(lambda part: float(run(batches.held, *part)), parts))
    assert sum(sums) == X.sum() + count


def test_what_does_not_fit_or_cannot_repeat_is_drawn_anew():
    python = tf.data.Dataset.from_generator(lambda: iter([X]), output_signature=tf.TensorSpec([13, 2]))
    assert isinstance(make(dataset()), CachedBatches)
    assert isinstance(make(dataset(), cache_bytes=100), StreamedBatches)
    assert isinstance(make(python), StreamedBatches)
    assert isinstance(make(dataset().repeat(), steps=2), CachedBatches)


def test_the_size_is_that_of_the_batches_that_are_evaluated():
    batch_bytes = 5 * (8 + 8)
    assert isinstance(make(dataset(), cache_bytes=3 * batch_bytes), CachedBatches)
    assert isinstance(make(dataset(), cache_bytes=3 * batch_bytes - 1), StreamedBatches)
    assert isinstance(make(dataset(), steps=1, cache_bytes=batch_bytes), CachedBatches)


def test_empty_or_endless_data_is_refused():
    with pytest.raises(ValueError, match=r"validation data is empty.*0 rows.*at least one"):
        make(X[:0], Y[:0])
    with pytest.raises(ValueError, match="validation data is empty: its dataset has no batch"):
        make(dataset().take(0))
    with pytest.raises(ValueError, match=r"never ends; pass validation_steps=.*take"):
        make(dataset().repeat())
    with pytest.raises(ValueError, match=r"no validation data: x is None; pass arrays"):
        make(None)
    unknown = CachedBatches(dataset().filter(lambda x, y: False), steps=None)
    with pytest.raises(ValueError, match="validation data is empty"):
        unknown.fill()


class Diary(keras.utils.PyDataset):
    """Four batches; writes down what Keras tells it and what it is asked for."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return np.full((2, 1), index, "float32"), np.zeros(2)

    def on_epoch_begin(self):
        self.events.append("begin")

    def on_epoch_end(self):
        self.events.append("end")


def test_the_next_pass_begins_only_when_it_is_drawn_from():
    data = Diary()
    batches = make(data)
    first, second = batches.begin(), batches.begin()
    assert data.events == []
    assert len(list(iter(first.draw, None))) == 4
    assert data.events == ["end", "begin"]
    assert second.draw() is not None
    assert data.events == ["end", "begin", "end", "end", "begin"]
    batches.close()
    batches.close()
    assert data.events[5:] == ["end"]


def test_no_pass_begins_after_the_end():
    data = Diary()
    batches = make(data)
    left = batches.begin()
    batches.close()
    assert left.draw() is None
    assert data.events == []


def test_workers_share_one_stream_and_every_batch_is_given_once():
    batches = make(Diary())
    stream, got, lock = batches.begin(), [], threading.Lock()

    def work():
        while (batch := stream.draw()) is not None:
            with lock:
                got.append(int(batch[0][0, 0]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    batches.close()
    assert sorted(got) == [0, 1, 2, 3]
    assert stream.drawn == 4


def test_a_generator_goes_on_where_it_stopped():
    def numbers():
        for i in itertools.count():
            yield np.full((2, 1), i, "float32"), np.zeros(2)

    batches = make(numbers(), steps=3)
    assert not batches.rewindable
    assert make(Diary()).rewindable
    passes = [[int(b[0][0, 0]) for b in iter(batches.begin().draw, None)] for _ in range(2)]
    assert len(passes[0]) == len(passes[1]) == 3
    assert passes[1][-1] > passes[0][-1]
