"""The validation set is divided at batch boundaries, and its batches are those of `keras.Model.evaluate`."""

from __future__ import annotations

import concurrent.futures
import gc
import itertools
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from overlap_train._data.array_batches import ArrayBatches
from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.shards import split_batches, warn_if_short
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._data.validation_data import make_batches
from overlap_train._keras.data import recognize

X = np.arange(26, dtype="float32").reshape(13, 2)
Y = np.arange(13)


def make(x, y=None, weight=None, *, batch_size=None, steps=None, cache_bytes=1 << 30, preprocess=None):
    data = recognize(x, y, weight, role="validation", batch_size=batch_size, steps=steps)
    return make_batches(data, steps=steps, cache_bytes=cache_bytes, preprocess=preprocess)


def dataset(size=5):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def sums(batches, first, stop):
    """Returns the number of batches from `first` to `stop`, their rows and the sum of all values."""

    total = tf.Variable(tf.zeros(3))

    def step(batch):
        x = tf.nest.flatten(batch)[0]
        return [total.assign_add([1.0, tf.cast(tf.shape(x)[0], tf.float32), tf.reduce_sum(x)])]

    if isinstance(batches, CachedBatches):
        batches.fill()
    over(batches, step, first, stop, tf.zeros(3))
    return total.numpy().tolist()


def over(batches, step, first, stop, start):
    """Does a step with each batch inside a compiled function; returns the last tensor."""
    fold = batches.fold

    @tf.function(autograph=False)
    def run(held, first, stop):
        return fold.over(held, first, stop, [start], step, [start.shape])

    (last,) = run(batches.held, tf.constant(first, tf.int64), tf.constant(stop, tf.int64))
    return last


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

    def join(batch):
        return [tf.strings.reduce_join(batch[1])]

    assert over(batches, join, 0, 1, tf.constant("")) == b"ab"
    assert over(batches, join, 0, 2, tf.constant("")) == b"c", "the last one's"
    assert over(batches, join, 2, 2, tf.constant("none")) == b"none"
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

    total, firsts = tf.Variable(0.0), [float(X[2 * s.first, 0]) for s in split_batches(count, 2)]

    def step(batch):
        x = tf.cond(
            tf.reduce_any(batch[0][0, 0] == firsts),
            lambda: tf.py_function(meet, [batch[0]], tf.float32),
            lambda: batch[0],
        )
        return [total.assign_add(tf.reduce_sum(x) + 1.0, read_value=True)]

    @tf.function(autograph=False)
    def run(held, first, stop):
        return batches.fold.over(held, first, stop, [tf.zeros([])], step, [tf.TensorShape([])])

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        parts = [[tf.constant(n, tf.int64) for n in (s.first, s.stop)] for s in split_batches(count, 2)]
        list(executor.map(lambda part: run(batches.held, *part), parts))
    assert float(total) == X.sum() + count


def test_what_goes_through_batches_is_the_same_for_other_data_of_the_same_kind_and_holds_none():
    """Compiled evaluations are kept by it: else each fit would compile its own, or read old data."""
    same = make(X, Y, batch_size=5), make(X + 1, Y, batch_size=5)
    assert same[0].fold == same[1].fold
    assert hash(same[0].fold) == hash(same[1].fold)
    assert make(X, Y, batch_size=4).fold != same[0].fold
    assert make(X[:12], Y[:12], batch_size=5).fold != same[0].fold
    kept = make(dataset()), make(dataset().map(lambda x, y: (x + 1, y)))
    assert all(isinstance(batches, CachedBatches) for batches in kept)
    assert kept[0].fold == kept[1].fold
    assert hash(kept[0].fold) == hash(kept[1].fold)
    assert make(dataset().map(lambda x, y: (x, tf.cast(y, tf.int32)))).fold != kept[0].fold
    held = [weakref.ref(batches) for batches in (*same, *kept)]
    folds = [batches.fold for batches in (*same, *kept)]
    del same, kept
    gc.collect()
    assert [batches() for batches in held] == [None] * len(folds)


def test_batches_of_arrays_are_prepared_by_a_trace_and_those_of_a_dataset_in_the_pipeline():
    def half(x, y):
        return x[:, :1] / 2, y

    arrays = make(X, Y, batch_size=5, cache_bytes=0, preprocess=half)
    raw = arrays.stream().draw()
    assert raw[0].shape == [5, 2]
    assert arrays.raw_spec[0].shape.as_list() == [None, 2]
    assert arrays.element_spec[0].shape.as_list() == [None, 1]
    np.testing.assert_array_equal(arrays.preparation(raw)[0], X[:5, :1] / 2)
    for cache_bytes, kind in ((1 << 30, CachedBatches), (0, StreamedBatches)):
        batches = make(dataset(), cache_bytes=cache_bytes, preprocess=half)
        assert isinstance(batches, kind)
        assert batches.preparation is None
        np.testing.assert_array_equal(batches.stream().draw()[0], X[:5, :1] / 2)
        if kind is StreamedBatches:
            batches.close()


def test_how_many_batches_are_to_come_is_known_where_it_can_be():
    """A live validation counts by it, as Keras does, and must not wait for one more batch than there is."""
    assert make(X, Y, batch_size=5).expected == 3
    assert make(X, Y, batch_size=5, steps=2).expected == 2
    assert make(dataset()).expected == 3
    assert make(dataset(), cache_bytes=0).expected == 3
    assert make(dataset().repeat(), steps=2, cache_bytes=0).expected == 2
    unknown = make(dataset().filter(lambda x, y: True), cache_bytes=0)
    assert isinstance(unknown, StreamedBatches)
    assert unknown.expected is None


def test_a_pipeline_that_reads_a_variable_is_drawn_anew_and_names_it():
    """A cache would keep what the variable was when it was filled."""
    scale = tf.Variable(2.0, name="scale")
    batches = make(dataset().map(lambda x, y: (x * scale, y)))
    assert isinstance(batches, StreamedBatches)
    assert batches.reads == ["scale"]
    firsts = []
    for value in (2.0, 3.0):
        scale.assign(value)
        stream = batches.begin()
        firsts.append(next(iter(stream.draw, None))[0].numpy())
        stream.finish()
    np.testing.assert_array_equal(firsts[1] / 3, X[:5])
    np.testing.assert_array_equal(firsts[0] / 2, X[:5])
    assert make(dataset(), cache_bytes=0).reads == []


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
    assert first.draw() is not None
    assert data.events == ["end", "begin"]
    assert len(list(iter(first.draw, None))) == 3
    assert data.events == ["end", "begin", "end"]
    assert second.draw() is not None
    assert data.events == ["end", "begin", "end", "end", "begin"]
    batches.close()
    batches.close()
    assert data.events[5:] == ["end"]


def test_the_end_of_a_validation_is_told_once_however_it_ends():
    """By its last batch, by whoever has enough, or by the next one that begins."""
    data = Diary()
    batches = make(data)
    stream = batches.begin()
    list(iter(stream.draw, None))
    stream.finish()
    assert stream.draw() is None
    assert data.events == ["end", "begin", "end"]
    data.events.clear()
    stream = batches.begin()
    stream.draw()
    stream.finish()
    assert stream.draw() is None
    assert data.events == ["end", "begin", "end"]
    data.events.clear()
    given_up, following = batches.begin(), batches.begin()
    given_up.draw()
    following.draw()
    assert data.events == ["end", "begin", "end", "end", "begin"]
    given_up.finish()
    assert data.events[5:] == [], "that of another one"
    batches.close()


def test_a_validation_whose_data_ends_early_is_told_by_the_batches_that_it_had(recwarn):
    """Keras warns of it; of a validation that ends where it should, it does not."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).filter(lambda x, y: True)
    for steps, count in ((2, 2), (3, 3), (9, 3)):
        batches = make(data, steps=steps, cache_bytes=0)
        stream = batches.begin()
        list(iter(stream.draw, None))
        assert batches.last_count == stream.drawn == count
        if count < steps:
            with pytest.warns(UserWarning, match="ran out after 3 batches, and validation_steps is 9"):
                warn_if_short(batches.last_count, steps)
        else:
            warn_if_short(batches.last_count, steps)
        warn_if_short(batches.last_count, None)
        batches.close()
    assert not recwarn.list


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
    """With the very next batch: those that an iterator has fetched ahead are not lost with it."""

    def numbers():
        for i in itertools.count():
            yield np.full((2, 1), i, "float32"), np.zeros(2)

    batches = make(numbers(), steps=3)
    assert not batches.rewindable
    assert make(Diary()).rewindable
    passes = [[int(b[0][0, 0]) for b in iter(batches.begin().draw, None)] for _ in range(2)]
    first = passes[0][0]
    assert passes == [[first, first + 1, first + 2], [first + 3, first + 4, first + 5]]
    batches.close()
