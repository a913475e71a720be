"""What a pipeline's operations tell about another pass over it; a watch on TensorFlow's private names."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.cached_batches import CachedBatches
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._data.pipeline import (
    cache_files,
    is_repeatable,
    keeps_state,
    prepared_batches,
    reorders,
)
from overlap_train._data.pipeline_parts import without_autotune
from overlap_train._data.streamed_batches import StreamedBatches
from overlap_train._data.validation_data import GivenData, make_batches
from overlap_train._keras.data import recognize

ROWS = np.arange(24, dtype="float32").reshape(12, 2)


def rows():
    return tf.data.Dataset.from_tensor_slices(ROWS)


@pytest.mark.parametrize(
    "after", [lambda d: d, lambda d: d.batch(5).prefetch(1).with_options(tf.data.Options())]
)
def test_a_reshuffle_is_seen_behind_other_operations(after):
    assert reorders(after(rows().shuffle(12, seed=1)))
    assert not reorders(after(rows().shuffle(12, seed=1, reshuffle_each_iteration=False)))
    assert not reorders(after(rows()))


def test_sampling_that_draws_anew_for_each_pass_is_seen():
    assert reorders(tf.data.Dataset.random(seed=3, rerandomize_each_iteration=True))
    both = [rows(), rows()]
    assert reorders(tf.data.Dataset.sample_from_datasets(both, seed=1, rerandomize_each_iteration=True))
    assert not reorders(tf.data.Dataset.sample_from_datasets(both, seed=1, rerandomize_each_iteration=False))


def test_a_generator_or_a_random_layer_in_map_keeps_state():
    generator = tf.random.Generator.from_seed(1)
    layer = keras.layers.RandomBrightness(0.5, value_range=(0, 1), seed=3)
    images = tf.data.Dataset.from_tensors(np.zeros((2, 4, 4, 1), "float32"))
    assert keeps_state(rows().map(lambda row: row + generator.normal(tf.shape(row))).batch(3))
    assert keeps_state(images.map(lambda image: layer(image, training=True)).prefetch(1))


def test_reading_a_variable_or_a_table_keeps_no_state():
    scale = tf.Variable(2.0)
    keys = tf.range(3, dtype=tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), -1)
    assert not keeps_state(rows().map(lambda row: row * scale))
    assert not keeps_state(tf.data.Dataset.range(3).map(table.lookup))
    assert not keeps_state(rows().map(lambda row: row + tf.random.normal([2])))


def test_data_whose_functions_keep_state_can_be_rewound_if_variables_hold_it():
    generator = tf.random.Generator.from_seed(1)
    noisy = rows().batch(4).map(lambda batch: (batch + generator.normal(tf.shape(batch)), batch))
    feed = IteratorFeed(recognize(noisy))
    assert feed.rewindable
    assert [variable.handle for variable in feed.drawn_variables] == [generator.state.handle]


def test_data_whose_functions_keep_state_elsewhere_cannot_be_rewound():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0)

    def counted(batch):
        table.insert(tf.cast(batch[:, 0], tf.int64), batch[:, 0])
        return batch, batch

    feed = IteratorFeed(recognize(rows().batch(4).map(counted)))
    assert not feed.rewindable
    feed.new_pass()
    with pytest.raises(RuntimeError, match="cannot be rewound"):
        feed.rewind(0)


def make(dataset, steps=None):
    given = GivenData(lambda: recognize(dataset, role="validation", steps=steps))
    return make_batches(given, steps=steps, cache_bytes=1 << 30)


def test_reshuffled_validation_data_is_drawn_anew_for_each_validation():
    assert isinstance(make(rows().batch(4)), CachedBatches)
    assert isinstance(
        make(rows().shuffle(12, seed=1, reshuffle_each_iteration=False).batch(4)), CachedBatches
    )
    assert isinstance(make(rows().shuffle(12, seed=1).batch(4)), StreamedBatches)


@pytest.mark.parametrize("steps", [None, 1, 2, 3])
def test_reshuffled_validation_batches_are_those_of_keras(steps):
    """Keras begins an iterator for each evaluation, and another one when the data is used up."""

    class Recorder(keras.Sequential):
        def test_step(self, data):
            seen.append(np.asarray(data).tolist())
            return {"loss": 0.0}

    def dataset():
        return rows().shuffle(12, seed=1).batch(5, drop_remainder=True)

    seen: list = []
    model = Recorder([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    arguments = {"validation_data": dataset(), "validation_steps": steps, "epochs": 3, "verbose": 0}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*ran out of data")
        model.fit(ROWS[:2], np.zeros((2, 1)), **arguments)
    batches = make(dataset(), steps)
    drawn = []
    for _ in range(3):
        drawn += [np.asarray(batch).tolist() for batch in iter(batches.begin().draw, None)]
    assert drawn == seen


def test_whether_a_dataset_gives_the_same_again():
    """tf.raw_ops.DatasetToGraphV2 and Dataset._variant_tensor."""
    python = tf.data.Dataset.from_generator(
        lambda: iter(ROWS), output_signature=tf.TensorSpec(ROWS.shape[1:], ROWS.dtype)
    )
    assert is_repeatable(rows())
    assert not is_repeatable(python)
    assert not is_repeatable(rows().map(lambda row: row + tf.random.normal([2])))


def _noise(row):
    return row + tf.random.normal([2])


def _told(row):
    tf.print(row)
    return row


@pytest.mark.parametrize(
    "make",
    [
        lambda d: d,
        lambda d: d.map(lambda row: row * 2).filter(lambda row: row[0] > 3).batch(3).prefetch(2),
        lambda d: d.map(tf.nn.relu, num_parallel_calls=2).padded_batch(2).take(3).skip(1).repeat(2),
        lambda d: d.batch(4).unbatch().cache().concatenate(d).shuffle(5, reshuffle_each_iteration=False),
        lambda d: tf.data.Dataset.zip((d, tf.data.Dataset.range(12))).with_options(tf.data.Options()),
        lambda d: d.map(lambda row: tf.while_loop(lambda r: r[0] < 9, lambda r: [r + 1], [row])[0]),
        lambda d: d.map(lambda row: row + np.ones((2,), "float32")),
        lambda d: d.map(lambda row: tf.py_function(lambda r: r, [row], tf.float32)),
        lambda d: d.map(_noise),
        lambda d: d.filter(lambda row: tf.random.uniform([]) > 0.5),
    ],
)
def test_a_large_dataset_is_judged_by_its_operations_as_a_small_one_by_what_is_written_out(make, monkeypatch):
    written_out = is_repeatable(make(rows()))
    monkeypatch.setattr("overlap_train._data.pipeline._MOST_WRITTEN_OUT_BYTES", 0)
    assert is_repeatable(make(rows())) is written_out


def test_a_large_dataset_is_not_written_out(monkeypatch):
    monkeypatch.setattr("overlap_train._data.pipeline._MOST_WRITTEN_OUT_BYTES", ROWS.nbytes - 1)
    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", lambda **_: pytest.fail("written out"))
    assert is_repeatable(rows().batch(3))
    table = tf.constant(ROWS)
    assert is_repeatable(tf.data.Dataset.range(3).map(lambda index: table[index])), "captured by a function"
    unknown = tf.data.Dataset.zip((rows(), tf.data.Dataset.random(seed=1)))
    for dataset in (rows().map(_told), unknown, rows().flat_map(tf.data.Dataset.from_tensors)):
        assert not is_repeatable(dataset), "what is not known to keep nothing is drawn anew each time"


def test_autotune_is_off_unless_the_user_decided():
    assert without_autotune(rows()).options().autotune.enabled is False
    chosen = tf.data.Options()
    chosen.autotune.enabled = True
    chosen.deterministic = False
    assert without_autotune(rows().with_options(chosen)).options().autotune.enabled is True
    chosen = tf.data.Options()
    chosen.deterministic = False
    assert without_autotune(rows().with_options(chosen)).options().deterministic is False
    assert without_autotune("not a dataset") == "not a dataset"


def test_the_files_of_caches_are_told_wherever_they_are_in_a_pipeline(tmp_path):
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    rows = tf.data.Dataset.range(8)
    assert cache_files(rows.cache()) == frozenset()
    assert cache_files(rows.cache(one).take(2).batch(1).cache()) == {one}
    both = tf.data.Dataset.zip(rows.cache(one), rows.cache(tf.constant(other)).shuffle(3))
    assert cache_files(prepared_batches(both.batch(2), None)) == {one, other}
    assert cache_files((np.zeros(2),)) == cache_files(None) == frozenset()


def test_batches_that_may_not_be_kept_are_drawn_anew(tmp_path):
    validation = tf.data.Dataset.range(8).cache(str(tmp_path / "cache")).batch(2)
    for keeps, kind in ((True, CachedBatches), (False, StreamedBatches)):
        given = GivenData(lambda: recognize(validation), keeps=keeps)
        assert isinstance(make_batches(given, steps=None, cache_bytes=1 << 20), kind)
