"""What a pipeline tells about another pass over it; a watch on TensorFlow's private names."""

from __future__ import annotations

import gc
import warnings
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data import pipeline
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._data.pipeline import is_repeatable, keeps_more_than_variables, keeps_state, reorders
from overlap_train._data.pipeline_facts import without_autotune
from overlap_train._keras.data import recognize
from tests.data.sources import make

ROWS = np.arange(24, dtype="float32").reshape(12, 2)


def rows():
    return tf.data.Dataset.from_tensor_slices(ROWS)


def sampled(*, anew):
    return tf.data.Dataset.sample_from_datasets([rows(), rows()], seed=1, rerandomize_each_iteration=anew)


def noisy():
    generator = tf.random.Generator.from_seed(1)
    return rows().map(lambda row: row + generator.normal(tf.shape(row))).batch(3)


def augmented():
    layer = keras.layers.RandomBrightness(0.5, value_range=(0, 1), seed=3)
    images = tf.data.Dataset.from_tensors(np.zeros((2, 4, 4, 1), "float32"))
    return images.map(lambda image: layer(image, training=True)).prefetch(1)


def scaled():
    scale = tf.Variable(2.0)
    return rows().map(lambda row: row * scale)


def looked_up(table):
    return tf.data.Dataset.range(3).map(table.lookup)


def static_table():
    keys = tf.range(3, dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, keys), -1)


def mutable_table():
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)


def filled():
    table = mutable_table()

    def inserted(number):
        table.insert(number, number)
        return number

    return tf.data.Dataset.range(3).map(inserted)


def of_python():
    return tf.data.Dataset.from_generator(lambda: iter(ROWS), output_signature=tf.TensorSpec([2], tf.float32))


ALIKE, REORDERS, WRITES, MORE = "repeatable", "reorders", "keeps state", "keeps more than variables"
PIPELINES = [
    (rows, {ALIKE}),
    (lambda: looked_up(static_table()), {ALIKE}),
    (lambda: rows().shuffle(12, seed=1, reshuffle_each_iteration=False), {ALIKE}),
    (lambda: rows().shuffle(12, seed=1), {REORDERS}),
    (lambda: rows().shuffle(12).batch(5).prefetch(1).with_options(tf.data.Options()), {REORDERS}),
    (lambda: tf.data.Dataset.random(seed=3, rerandomize_each_iteration=True), {REORDERS}),
    (lambda: sampled(anew=True), {REORDERS}),
    (lambda: sampled(anew=False), {ALIKE}),
    (noisy, {WRITES}),
    (augmented, {WRITES}),
    (scaled, set()),
    (lambda: rows().map(_noise), set()),
    (of_python, set()),
    (filled, {WRITES, MORE}),
    (lambda: looked_up(mutable_table()), set()),
    (lambda: rows().map(_told), set()),
]


@pytest.mark.by_default("<lambda>-facts7", "filled-facts13")
@pytest.mark.parametrize(("make", "facts"), PIPELINES)
def test_what_a_pipeline_tells_about_another_pass(make, facts):
    """By tf.raw_ops.DatasetToGraphV2, Dataset._variant_tensor and the flags of the stages."""
    asked = {ALIKE: is_repeatable, REORDERS: reorders, WRITES: keeps_state, MORE: keeps_more_than_variables}
    assert {fact for fact, asks in asked.items() if asks(make())} == facts
    if MORE in facts:
        assert not IteratorFeed(recognize(make().batch(2))).rewindable


@pytest.mark.parametrize("steps", [None, 1, 2, 3])
@pytest.mark.by_default("None", "2")
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
    batches = make(dataset(), steps=steps)
    drawn = []
    for _ in range(3):
        drawn += [np.asarray(batch).tolist() for batch in iter(batches.begin().draw, None)]
    assert drawn == seen


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
        lambda d: d.concatenate(d.map(_noise)),
        lambda d: d.concatenate(d.map(lambda row: tf.py_function(lambda r: r, [row], tf.float32))),
        lambda d: d.filter(lambda row: tf.random.uniform([]) > 0.5),
    ],
)
def test_a_large_dataset_is_judged_by_its_operations_as_a_small_one_by_what_is_written_out(make, monkeypatch):
    written_out = is_repeatable(make(rows()))
    monkeypatch.setattr("overlap_train._data.pipeline._MOST_SERIALIZED_BYTES", 0)
    assert is_repeatable(make(rows())) is written_out


def test_a_large_dataset_is_not_written_out(monkeypatch):
    monkeypatch.setattr("overlap_train._data.pipeline._MOST_SERIALIZED_BYTES", ROWS.nbytes - 1)
    monkeypatch.setattr(tf.raw_ops, "DatasetToGraphV2", lambda **_: pytest.fail("written out"))
    assert is_repeatable(rows().batch(3))
    table = tf.constant(ROWS)
    assert is_repeatable(tf.data.Dataset.range(3).map(lambda index: table[index])), "captured by a function"
    unknown = tf.data.Dataset.zip((rows(), tf.data.Dataset.random(seed=1)))
    for dataset in (unknown, rows().flat_map(tf.data.Dataset.from_tensors)):
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
    given = rows()
    one, other = without_autotune(given), without_autotune(given)
    assert one._variant_tensor is other._variant_tensor, "TensorFlow would optimize it anew for each fit"
    assert one._inputs() == [given]


def test_the_files_of_caches_are_told_wherever_they_are_in_a_pipeline(tmp_path):
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    rows = tf.data.Dataset.range(8)
    assert pipeline.cache_files(rows.cache()) == frozenset()
    assert pipeline.cache_files(rows.cache(one).take(2).batch(1).cache()) == {one}
    both = tf.data.Dataset.zip(rows.cache(one), rows.cache(tf.constant(other)).shuffle(3))
    assert pipeline.cache_files(pipeline.prepared_batches(both.batch(2), None)) == {one, other}
    assert pipeline.cache_files((np.zeros(2),)) == pipeline.cache_files(None) == frozenset()


def forbidden(dataset):
    """Returns a dataset that TensorFlow must not have prefetched."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _is_small(row):
    return row[0] < 3.0


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda d: d.shuffle(12).repeat(), True),
        (lambda d: d.shuffle(12).repeat().prefetch(1), False),
        (lambda d: d.shuffle(12).repeat().map(tf.identity, num_parallel_calls=2), False),
        (lambda d: d.repeat().shuffle(12), False),
        (lambda d: forbidden(d.shuffle(12).repeat()), False),
    ],
)
def test_a_repeated_shuffle_is_begun_ahead_as_keras_has_it(make, expected):
    """By a stage that draws one batch ahead: then the next order is drawn behind the last batch of a pass."""
    given = make(rows())
    prepared = pipeline.prepared_batches(given, None)
    (stage,) = prepared._inputs()
    assert (type(prepared).__name__, stage is given) == ("_OptionsDataset", not expected)
    assert type(stage).__name__ == "_PrefetchDataset" or not expected
    assert int(prepared.cardinality()) == int(given.cardinality())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda d: d.filter(_is_small).cache().batch(2), True),
        (lambda d: d.filter(_is_small).cache().apply(tf.data.experimental.assert_cardinality(2)), True),
        (lambda d: forbidden(d.filter(_is_small).batch(2).cache().prefetch(1)), True),
        (lambda d: forbidden(d.filter(_is_small).batch(2).cache()), False),
        (lambda d: d.shuffle(12).cache(), False),
    ],
)
def test_a_cache_is_asked_for_its_end_that_does_not_know_its_length(make, expected):
    assert pipeline.is_asked_for_its_end(make(rows())) is expected


@pytest.mark.parametrize("kind", [tf.data.Dataset, tf.compat.v1.data.Dataset])
@pytest.mark.parametrize("used", [lambda d: None, without_autotune, lambda d: list(without_autotune(d))])
def test_a_pipeline_goes_when_its_user_lets_go_of_it(used, kind):
    gc.collect()
    gc.disable()
    try:
        dataset = kind.from_tensor_slices(ROWS).batch(3)
        used(dataset)
        gone = weakref.ref(dataset)
        del dataset
        assert gone() is None, "its arrays would stay until somebody collects garbage"
    finally:
        gc.enable()
