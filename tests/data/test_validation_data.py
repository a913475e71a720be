"""Each kind of validation data is kept, or drawn anew where another pass may differ."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.streamed_batches import StreamedBatches
from tests.data.batches import X, Y, dataset, make


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
    with pytest.raises(ValueError, match=r"never ends; pass validation_steps=.*take"):
        make(dataset().repeat())
    with pytest.raises(ValueError, match=r"no validation data: x is None; pass arrays"):
        make(None)


@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize("rows", [lambda: dataset().take(0), lambda: dataset().filter(lambda x, y: False)])
def test_a_dataset_without_a_batch_is_one(rows, steps):
    batches = make(rows(), steps=steps)
    assert batches.stream().draw() is None
    assert batches.last_count == 0
    kept = CachedBatches(rows(), steps)
    assert (kept.fill(), kept.num_batches, len(kept.held)) == (0, 0, len(kept.held_spec))
    assert kept.stream().draw() is None
