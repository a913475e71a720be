"""What a step does besides is found, named with its place, given a remedy; stock steps do nothing such."""

import functools

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._inspection.traced import TracedFunction
from tests import networks

kl = keras.layers


def effects(function, *specs):
    return [str(effect) for effect in TracedFunction(function, *(specs or [tf.TensorSpec([2])])).effects]


TABLE = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)

DRAWN = "RandomStandardNormal", "SeedGenerator"
QUEUE = tf.queue.FIFOQueue(3, tf.float32, shapes=[2])


def draw(x):
    return x + tf.random.normal([2])


CASES = {
    "tf.random.normal": (lambda x: draw(x), *DRAWN),
    "tf.random.uniform of integers": (
        lambda x: x + tf.cast(tf.random.uniform([2], 0, 9, tf.int32), tf.float32),
        "RandomUniformInt",
        "SeedGenerator",
    ),
    "tf.random.categorical": (lambda x: tf.random.categorical([x], 3), "Multinomial", "SeedGenerator"),
    "tf.py_function": (lambda x: tf.py_function(lambda v: v, [x], tf.float32), "EagerPyFunc", "add_weight"),
    "tf.print": (lambda x: (tf.print(x), x)[1], "PrintV2", "callback"),
    "a table": (
        lambda x: (TABLE.insert(tf.constant("a"), tf.constant(1, tf.int64)), x)[1],
        "LookupTableInsertV2",
        "add_weight",
    ),
    "a queue": (lambda x: (QUEUE.enqueue(x), x)[1], "QueueEnqueueV2", "callback"),
    "a file": (lambda x: (tf.io.write_file("/dev/null", "a"), x)[1], "WriteFile", "callback"),
    "inside while": (
        lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, draw(v)), (0, x))[1],
        *DRAWN,
    ),
    "inside cond": (lambda x: tf.cond(x[0] > 0, lambda: draw(x), lambda: x), *DRAWN),
    "inside jit": (tf.function(lambda x: draw(x), jit_compile=True, autograph=False), *DRAWN),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_names_the_operation_the_line_and_a_remedy(name):
    function, operation, remedy = CASES[name]
    (effect,) = effects(function)
    assert operation in effect
    assert ("test_effects.py:" in effect) is not name.startswith("inside")
    assert remedy in effect


def test_the_layer_is_in_the_place():
    class Noise(kl.Layer):
        def call(self, x):
            return x + tf.random.normal(tf.shape(x))

    model = keras.Sequential([keras.Input((2,)), Noise(name="my_noise"), kl.Dense(1)])
    (effect,) = effects(model, tf.TensorSpec([None, 2]))
    assert "my_noise" in effect


def test_a_summary_is_one(tmp_path):
    def write(x):
        tf.summary.scalar("x", x[0], step=1)
        return x

    assert effects(write) == []  # nobody has said where to
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        (effect,) = effects(write)
    assert "writes a summary" in effect


IMAGES = [
    *(kl.RandomFlip(), kl.RandomRotation(0.1), kl.RandomZoom(0.1), kl.RandomContrast(0.1)),
    *(kl.GaussianNoise(0.1), kl.Conv2D(2, 3), kl.BatchNormalization(), kl.SpatialDropout2D(0.2)),
    kl.GlobalMaxPooling2D(),
]
SEQUENCES = [
    *(kl.Bidirectional(kl.LSTM(3, return_sequences=True, dropout=0.1, recurrent_dropout=0.1)), kl.GRU(2)),
]


@pytest.mark.by_default("layers2-shape2-lion")
@pytest.mark.parametrize(
    ("layers", "shape", "optimizer"),
    [
        (IMAGES, (8, 8, 3), "sgd"),
        (SEQUENCES, (4, 2), "adamw"),
        ([kl.Embedding(9, 2), kl.Flatten()], (3,), "lion"),
    ],
)
def test_stock_layers_and_optimizers_do_nothing_such(layers, shape, optimizer):
    model = keras.Sequential([keras.Input(shape), *layers, kl.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae", keras.metrics.AUC()])
    assert effects(model.train_step, (tf.TensorSpec([None, *shape]), tf.TensorSpec([None, 1]))) == []


def test_a_ctc_loss_which_calls_functions_by_their_names_does_nothing_such():
    model = keras.Sequential([keras.Input((8, 3)), kl.Dense(5)])
    model.compile("sgd", keras.losses.CTC())
    assert effects(model.train_step, (tf.TensorSpec([None, 8, 3]), tf.TensorSpec([None, 3], tf.int32))) == []


def test_cudnns_recurrent_layers_do_nothing_such():
    """As Keras calls them on a GPU; traced here, not run."""

    def layer(x):
        state = tf.zeros([1, 2, 4])
        y, h, c, _, _ = tf.raw_ops.CudnnRNNV3(
            input=tf.reshape(x, [1, 2, 1]),
            input_h=state,
            input_c=state,
            params=tf.zeros([112]),
            sequence_lengths=tf.constant([1, 1]),
            is_training=False,
        )
        return tf.reduce_sum(y) + tf.reduce_sum(h) + tf.reduce_sum(c)

    assert effects(layer) == []


TABLES = {  # whose entries a callback may change: of numbers, without a name, and of fixed size
    "mutable": tf.lookup.experimental.MutableHashTable,
    "anonymous": functools.partial(tf.lookup.experimental.MutableHashTable, experimental_is_anonymous=True),
    "dense": functools.partial(tf.lookup.experimental.DenseHashTable, empty_key=-1, deleted_key=-2),
}


class Inserts(keras.callbacks.Callback):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def on_epoch_end(self, epoch, logs=None):
        self.table.insert(tf.constant([0, 1], tf.int64), tf.constant([3.0 + epoch, 0.1]))


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["loss", "data", "validation data"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_a_callback_changes_is_read_when_keras_reads_it(kind, place):
    x, y = networks.arrays(48)
    inner = networks.crossentropy()

    def run(make_trainer):
        keras.utils.set_random_seed(3)
        table = TABLES[kind](tf.int64, tf.float32, 1.0)

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
        validation = weighed if place == "validation data" else (x, y)
        arguments = {"callbacks": [Inserts(table)], "validation_data": validation, "epochs": 3, "verbose": 0}
        arguments |= {"x": weighed} if place == "data" else {"x": x, "y": y, "batch_size": 16}
        trainer = make_trainer(model)
        return trainer.fit(shuffle=False, **arguments).history, trainer

    policy = ValidationPolicy(max_lag=2, overlap="always")
    ours, trainer = run(lambda model: Trainer(model, validation=policy))
    networks.assert_same_history(ours, run(lambda model: model)[0])
    assert [message for message in trainer.messages if "table" in message]


def test_tables_that_nobody_can_change_do_not_hold_the_training_up():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"], num_oov_indices=1)
    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([1.0, 2.0]))
    static = tf.lookup.StaticHashTable(initializer, 1.0)

    def step(words, numbers):
        return tf.cast(lookup(words), tf.float32) + static.lookup(numbers)

    traced = TracedFunction(step, tf.TensorSpec([3], tf.string), tf.TensorSpec([3], tf.int64))
    assert traced.effects == ()
