"""Lookup tables that a step, a loss or the data reads: in step where a callback may change them."""

from __future__ import annotations

import itertools

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._inspection.traced import TracedFunction
from tests import networks


def tables():
    """Tables whose entries a callback may change: of numbers, without a name, and of fixed size."""
    kinds = tf.lookup.experimental
    return {
        "mutable": kinds.MutableHashTable(tf.int64, tf.float32, 1.0),
        "anonymous": kinds.MutableHashTable(tf.int64, tf.float32, 1.0, experimental_is_anonymous=True),
        "dense": kinds.DenseHashTable(tf.int64, tf.float32, 1.0, empty_key=-1, deleted_key=-2),
    }


class Inserts(keras.callbacks.Callback):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def on_epoch_end(self, epoch, logs=None):
        self.table.insert(tf.constant([0, 1], tf.int64), tf.constant([3.0 + epoch, 0.1]))


KINDS, PLACES = ("mutable", "anonymous", "dense"), ("loss", "data", "validation data")
# Each kind and each place once; nightly each kind in each place.
IN_EVERY_RUN = set(zip(KINDS, PLACES, strict=True))


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        pytest.param(*case, marks=() if case in IN_EVERY_RUN else (pytest.mark.nightly,))
        for case in itertools.product(KINDS, PLACES)
    ],
)
def test_a_table_that_a_callback_changes_is_read_when_keras_reads_it(kind, place):
    x, y = networks.arrays(48)
    inner = networks.crossentropy()

    def run(train):
        keras.utils.set_random_seed(3)
        table = tables()[kind]

        def weights(labels):
            return tf.ensure_shape(table.lookup(tf.cast(labels, tf.int64)), labels.shape)

        def loss(labels, outputs):
            labels = tf.reshape(labels, [-1])
            return weights(labels) * keras.losses.sparse_categorical_crossentropy(
                labels, outputs, from_logits=True
            )

        model = keras.Sequential([keras.Input((networks.FEATURES,)), keras.layers.Dense(networks.CLASSES)])
        model.compile("sgd", loss if place == "loss" else inner)
        weighed = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        weighed = weighed.map(lambda x, y: (x, y, weights(y)))
        data = weighed if place == "data" else (x, y)
        validation = weighed if place == "validation data" else (x, y)
        arguments = {"callbacks": [Inserts(table)], "validation_data": validation, "epochs": 3, "verbose": 0}
        if place != "data":
            return train(model, *data, batch_size=16, shuffle=False, **arguments).history
        return train(model, data, shuffle=False, **arguments).history

    said = []

    def ours(model, *data, **arguments):
        trainer = Trainer(model, validation=ValidationPolicy(max_lag=2, overlap="always"))
        history = trainer.fit(*data, **arguments)
        said.extend(trainer.messages)
        return history

    networks.assert_same_history(run(ours), run(lambda model, *d, **a: model.fit(*d, **a)))
    assert [message for message in said if "table" in message]


def test_tables_that_nobody_can_change_do_not_hold_the_training_up():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], num_oov_indices=1)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([1.0, 2.0]))
    static = tf.lookup.StaticHashTable(initializer, 1.0)

    def step(words, numbers):
        return tf.cast(lookup(words), tf.float32) + static.lookup(numbers)

    traced = TracedFunction(step, tf.TensorSpec([3], tf.string), tf.TensorSpec([3], tf.int64))
    assert traced.effects == ()
