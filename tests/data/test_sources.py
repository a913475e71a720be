"""Training batches come in Keras's order, and a pass can be made again after a rollback."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import zero_copy
from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._data.memory import copied_bytes, size_bytes
from overlap_train._data.pipeline import without_autotune
from overlap_train._data.training_data import make_feed
from overlap_train._keras.data import recognize

X = np.arange(26, dtype="float32").reshape(13, 2)
Y = np.arange(13)


def feed_of(x, y=None, weight=None, *, memory=True, shuffle=True, preprocess=None, **options):
    data = recognize(x, y, weight, shuffle=shuffle, **options)
    return make_feed(data, hold_in_memory=lambda size: memory, preprocess=preprocess)


def one_pass(feed):
    """Returns the labels of each batch of the next pass."""
    batches = feed.new_pass()
    if isinstance(feed, ArrayFeed):
        order = batches
        batches = [feed.batch(order, tf.constant(i, tf.int64)) for i in range(feed.num_batches)]
    return [batch[1].numpy().tolist() for batch in batches]


def keras_passes(count, shuffle):
    data = recognize(X, Y, batch_size=4, shuffle=shuffle).pipeline.dataset
    return [[batch[1].numpy().tolist() for batch in data] for _ in range(count)]


@pytest.mark.parametrize("memory", [True, False])
@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_batches_are_those_of_keras_for_the_same_seed(shuffle, memory):
    keras.utils.set_random_seed(3)
    expected = keras_passes(3, shuffle)
    keras.utils.set_random_seed(3)
    feed = feed_of(X, Y, batch_size=4, shuffle=shuffle, memory=memory)
    assert isinstance(feed, ArrayFeed if memory else IteratorFeed)
    assert [one_pass(feed) for _ in range(3)] == expected
    assert feed.num_batches == 4


@pytest.mark.parametrize("shuffle", [True, "batch"])
def test_an_array_feed_repeats_its_orders(shuffle):
    feed = feed_of(X, Y, batch_size=4, shuffle=shuffle)
    orders = [feed.new_pass() for _ in range(4)]
    assert all(sorted(order.numpy()) == list(range(13)) for order in orders)
    feed.rewind(1)
    assert all(feed.new_pass() is order for order in orders[1:])
    assert feed.drawn == 4


def test_an_array_feed_forgets_the_orders_that_nobody_needs():
    feed = feed_of(X, Y, batch_size=4)
    for _ in range(5):
        feed.new_pass()
        feed.forget(feed.drawn - 1)
    assert len(feed._orders) == 1


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


PIPELINES = {
    "one shuffle": lambda: rows().shuffle(13, seed=5).batch(4),
    "no seed": lambda: rows().shuffle(13).batch(4),
    "after a cache": lambda: rows().cache().shuffle(5, seed=5).batch(4),
    "before everything": lambda: (
        rows().shuffle(13, seed=5).map(lambda x, y: (x * 2, y), tf.data.AUTOTUNE).batch(4).take(3).prefetch(2)
    ),
    "fixed": lambda: rows().shuffle(13, seed=5, reshuffle_each_iteration=False).batch(4),
    "sampled": lambda: tf.data.Dataset.sample_from_datasets(
        [rows(), rows()], seed=1, rerandomize_each_iteration=True
    ).batch(4),
}


@pytest.mark.parametrize("build", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("back_to", [0, 1, 3])
def test_an_iterator_feed_repeats_its_passes(build, back_to):
    feed = feed_of(build())
    assert feed.rewindable
    passes = [one_pass(feed) for _ in range(4)]
    feed.rewind(back_to)
    assert [one_pass(feed) for _ in range(4 - back_to)] == passes[back_to:]
    feed.rewind(back_to)
    assert [one_pass(feed) for _ in range(4 - back_to)] == passes[back_to:], "a second time"


LAZY = {
    "two shuffles": lambda: rows().shuffle(13, seed=5).batch(4).shuffle(4, seed=6),
    "cached": lambda: rows().shuffle(13, seed=5).cache().batch(4),
    "repeated": lambda: rows().shuffle(13, seed=5).repeat(2).batch(4),
    "concatenated": lambda: rows().concatenate(rows().shuffle(13, seed=5)).batch(4),
    "part of an endless one": lambda: rows().shuffle(13, seed=5).repeat().batch(4).take(9),
}


@pytest.mark.parametrize("build", LAZY.values(), ids=LAZY)
def test_seeds_that_are_drawn_with_the_elements_cannot_be_drawn_again(build):
    feed = feed_of(build())
    assert not feed.rewindable
    passes = [one_pass(feed) for _ in range(2)]
    other = build()
    assert passes == [[batch[1].numpy().tolist() for batch in other] for _ in range(2)], "still Keras's order"


def test_going_back_to_where_one_stands_changes_nothing():
    feed, other = feed_of(PIPELINES["one shuffle"]()), feed_of(PIPELINES["one shuffle"]())
    one_pass(feed)
    feed.rewind(1)
    one_pass(other)
    assert one_pass(feed) == one_pass(other)


def test_what_python_makes_cannot_be_rewound():
    def batches():
        for i in itertools.count():
            yield np.full((2, 2), i, "float32"), np.zeros(2)

    inside = tf.data.Dataset.from_generator(
        batches, output_signature=(tf.TensorSpec([2, 2]), tf.TensorSpec([2]))
    )
    mapped = rows().map(lambda x, y: (x, tf.numpy_function(lambda v: v, [y], tf.int64)))
    for data in (batches(), inside, mapped.batch(2)):
        feed = feed_of(data, steps=2)
        assert not feed.rewindable
        feed.new_pass()
        with pytest.raises(RuntimeError, match="cannot be rewound"):
            feed.rewind(0)


def test_variables_that_a_pipeline_reads_are_named_and_none_are_where_it_reads_none():
    """It runs ahead of the steps: what it reads has to be in the snapshots, or the training in step."""
    scale = tf.Variable(2.0, name="scale")
    feed = feed_of(rows().map(lambda x, y: (x * scale, y)).batch(4))
    assert [(variable.name, variable.written) for variable in feed.captured] == [("scale", False)]
    assert list(feed_of(rows().batch(4)).captured) == []
    assert list(feed_of(X, Y, batch_size=4).captured) == []


def test_a_function_that_prepares_rows_is_traced_and_names_what_it_uses():
    scale = tf.Variable(2.0, name="scale")
    feed = feed_of(X, Y, batch_size=4, shuffle=False, preprocess=lambda x, y: (x * scale, y))
    assert [variable.name for variable in feed.preparation.variables] == ["scale"]
    assert feed.preparation.effects == ()

    @tf.function(autograph=False)
    def first(order, tensors):
        return feed.batch(order, tf.constant(0, tf.int64), tensors)[0]

    order = feed.new_pass()
    for value in (2.0, 3.0):
        scale.assign(value)
        np.testing.assert_array_equal(first(order, feed.tensors), X[:4] * value)
    random = feed_of(X, Y, batch_size=4, preprocess=lambda x, y: (x + tf.random.normal([2]), y))
    assert [effect.operation for effect in random.preparation.effects] == ["RandomStandardNormal"]
    assert feed_of(X, Y, batch_size=4).preparation is None


def test_arrays_keep_their_dtype_and_uneven_batches_have_no_static_size():
    pixels = np.zeros((8, 3, 3, 1), "uint8")
    feed = feed_of(pixels, np.zeros(8, "int64"), batch_size=4)
    assert feed.tensors[0].dtype == tf.uint8
    assert feed.element_spec[0] == tf.TensorSpec([4, 3, 3, 1], tf.uint8)
    assert feed_of(X, Y, batch_size=4).element_spec[0] == tf.TensorSpec([None, 2], tf.float32)


def test_class_weights_become_sample_weights():
    feed = feed_of(X, np.arange(13) % 2, batch_size=13, shuffle=False, class_weight={0: 1.0, 1: 3.0})
    batch = feed.batch(feed.new_pass(), tf.constant(0, tf.int64))
    np.testing.assert_allclose(batch[2], np.where(np.arange(13) % 2, 3.0, 1.0))


def test_the_bytes_asked_for_are_those_of_all_arrays():
    asked = []
    make_feed(recognize(X, Y), hold_in_memory=lambda size: bool(asked.append(size)))
    assert asked == [X.nbytes + Y.nbytes]
    assert size_bytes(tf.zeros([3, 2], tf.int16)) == 12
    assert size_bytes(np.zeros((3, 2), "int16")) == 12


def test_sparse_arrays_go_through_tf_data():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    feed = feed_of(sparse.csr_matrix(X), Y, batch_size=4, shuffle=False)
    assert isinstance(feed, IteratorFeed)
    assert one_pass(feed) == keras_passes(1, False)[0]


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


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:0], Y[:0], r"training data is empty.*0 rows.*at least one"),
        (rows().batch(4).take(0), None, "training data is empty: its dataset has no batch"),
        (None, None, r"no training data: x is None; pass arrays"),
        (X, Y[:-1], r"(?s)'x' sizes: 13.*'y' sizes: 12"),
        ("text", None, "Unrecognized data type"),
    ],
)
def test_data_that_cannot_be_meant_is_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        feed_of(x, y)


def mapped(tmp_path, array):
    np.save(tmp_path / "rows.npy", array)
    return np.load(tmp_path / "rows.npy", mmap_mode="r")


def test_a_mapped_file_is_read_where_it_lies(tmp_path):
    rows = mapped(tmp_path, X)
    before = zero_copy.statistics()
    feed = feed_of(rows, Y, batch_size=4, shuffle=False)
    assert zero_copy.statistics().copied_bytes == before.copied_bytes
    assert zero_copy.as_array(feed.tensors[0]).ctypes.data == rows.ctypes.data
    assert one_pass(feed) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12]]


def test_a_mapped_file_does_not_count_as_memory(tmp_path):
    asked = []
    make_feed(recognize(mapped(tmp_path, X), Y), hold_in_memory=lambda size: asked.append(size))
    assert asked == [Y.nbytes]


@pytest.mark.parametrize("lend", ["never", "view of a writable array"])
def test_who_writes_to_an_array_changes_nothing_as_in_keras(lend):
    rows = zero_copy.empty(X.shape)  # aligned, so that it could be shared
    rows[...] = X
    given = rows
    if lend != "never":
        given = rows[:]
        given.flags.writeable = False
    feed = feed_of(given, Y, batch_size=4, shuffle=False)
    rows[...] = -1
    np.testing.assert_array_equal(feed.tensors[0], X)


def test_what_cannot_be_lent_counts_as_memory(tmp_path):
    assert copied_bytes(mapped(tmp_path, X)) == 0
    assert copied_bytes(mapped(tmp_path, X)[:, :1]) == 13 * 4, "not contiguous"
    assert copied_bytes(mapped(tmp_path, X)[1:]) == 12 * 8, "not aligned"
    assert copied_bytes(X) == X.nbytes, "writable"
    assert copied_bytes(tf.constant(X)) == X.nbytes, "a tensor of the user's"
