"""A step in parts is the step of the whole batch, and is not taken where that cannot be known."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._training import splitting
from overlap_train._training.splitting import find_obstacle
from tests import networks


def spec_of(*arrays):
    return keras.tree.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), arrays)


def test_batch_normalization_is_an_obstacle():
    model = networks.subclassed()
    x, y = networks.arrays()
    model.evaluate(x, y, verbose=0)
    assert "layer" in find_obstacle(model, spec_of(x, y)) or "Awkward" in find_obstacle(model, spec_of(x, y))
    assert "changes state" in find_obstacle(model, spec_of(x, y), trusted=True)


def sequential_with(*layers):
    model = keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(networks.CLASSES)])
    model.compile("sgd", networks.crossentropy())
    model.optimizer.build(model.trainable_variables)
    return model


def _minus_mean(x):
    return x - keras.ops.mean(x, axis=0)


@pytest.mark.parametrize("activation", ["gelu", keras.ops.silu, tf.nn.relu, keras.layers.LeakyReLU()])
def test_known_activations_are_no_obstacle(activation):
    x, y = networks.arrays()
    layer = keras.layers.Dense(4, activation=activation)
    assert find_obstacle(sequential_with(layer), spec_of(x, y)) is None


def test_inputs_that_cannot_be_divided_by_rows_are_an_obstacle():
    def compiled(inputs, output):
        model = keras.Model(inputs, output)
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
        return model

    labels = tf.TensorSpec([None, 3])
    sparse = keras.Input((6,), sparse=True)
    spec = (tf.SparseTensorSpec([None, 6]), labels)
    assert "sparse" in find_obstacle(compiled(sparse, keras.layers.Dense(3)(sparse)), spec)
    inputs = [keras.Input((6,)), keras.Input((6,))]
    model = compiled(inputs, keras.layers.Dense(3)(keras.layers.Add()(inputs)))
    spec = ((tf.TensorSpec([None, 6]), tf.TensorSpec([1, 6])), labels)
    assert "number of rows" in find_obstacle(model, spec)


@pytest.mark.parametrize(
    ("layer", "trusted", "says"),
    [
        (lambda: keras.layers.GaussianNoise(0.1), True, "changes state"),
        (lambda: keras.layers.GaussianNoise(0.1), False, "GaussianNoise"),
        (lambda: keras.layers.BatchNormalization(), True, "changes state"),
        (lambda: keras.layers.Dense(4, activity_regularizer="l2"), True, "add_loss"),
        (lambda: keras.layers.Lambda(lambda x: x - keras.ops.mean(x, axis=0)), False, "Lambda"),
        (lambda: keras.layers.Softmax(axis=0), False, "axis 0"),
        (lambda: keras.layers.Softmax(axis=-2), False, "axis -2"),
        (lambda: keras.layers.UnitNormalization(axis=[-2]), False, r"axis [-2]"),
        (lambda: keras.layers.Dense(4, activation=_minus_mean), False, "the activation of Dense"),
        (lambda: keras.layers.Activation(_minus_mean), False, "the activation of Activation"),
    ],
)
def test_what_mixes_rows_or_has_state_is_an_obstacle(layer, trusted, says):
    x, y = networks.arrays()
    assert says in find_obstacle(sequential_with(layer()), spec_of(x, y), trusted=trusted)


def test_own_train_step_is_an_obstacle():
    class Own(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = Own([keras.Input((12,)), keras.layers.Dense(networks.CLASSES)])
    model.compile("sgd", networks.crossentropy())
    x, y = networks.arrays()
    with pytest.raises(ValueError, match=r"batch_splits=2 is not possible.*train_step"):
        Trainer(model, execution=ExecutionPlan(batch_splits=2)).fit(x, y, verbose=0)


def test_looking_for_obstacles_changes_nothing():
    model = networks.sequential()
    x, y = networks.arrays()
    model.evaluate(x, y, verbose=0)
    before = [v.numpy() for v in model.variables + model.metrics_variables]
    assert find_obstacle(model, spec_of(x, y)) is None
    for value, variable in zip(before, model.variables + model.metrics_variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())
    assert not any("call" in vars(layer) for layer in model.layers)


def _attending():
    x = keras.Input((5, 6))
    y = keras.layers.MultiHeadAttention(2, 3, dropout=0.1)(x, x)
    return keras.Model(x, keras.layers.Dense(networks.CLASSES)(keras.layers.GlobalAveragePooling1D()(x + y)))


def _recurrent(**options):
    embedding = keras.layers.Embedding(9, 4, mask_zero=options.pop("mask_zero", False))
    batch = options.pop("batch", None)
    entry = keras.Input(batch_shape=(batch, 5), dtype="int64")
    head = keras.layers.Dense(networks.CLASSES)
    return keras.Sequential([entry, embedding, keras.layers.LSTM(3, **options), head])


@pytest.mark.parametrize(
    ("make", "spec", "tells"),
    [
        (_attending, tf.TensorSpec([None, 5, 6]), True),
        (_recurrent, tf.TensorSpec([8, 5], tf.int64), True),
        (lambda: _recurrent(dropout=0.1), tf.TensorSpec([8, 5], tf.int64), False),
        (lambda: _recurrent(mask_zero=True), tf.TensorSpec([8, 5], tf.int64), False),
        (lambda: _recurrent(stateful=True, batch=8), tf.TensorSpec([8, 5], tf.int64), False),
        (lambda: _recurrent(batch=8), tf.TensorSpec([8, 5], tf.int64), False),
    ],
    ids=["attention", "lstm", "dropout", "mask", "stateful", "fixed size"],
)
def test_models_of_symbolic_layers_tell_without_a_trace_what_a_trace_would(monkeypatch, make, spec, tells):
    model = make()
    model.compile("sgd", networks.crossentropy())
    model.optimizer.build(model.trainable_variables)
    specs = (spec, tf.TensorSpec([spec.shape[0]], tf.int64))
    assert splitting._is_plain(model, specs) == tells
    if tells:
        assert splitting._Probe(model).obstacle(specs) is None


def images(rows=50):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 8, 8, 1)).astype("float32"), rng.integers(0, networks.CLASSES, rows)


def cnn(optimizer="sgd"):
    """Convolution, two calls of one Dropout, a regulariser, gradient clipping, weighted metrics."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((8, 8, 1))
    drop = keras.layers.Dropout(0.3)
    hidden = keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2")(inputs)
    hidden = drop(keras.layers.Dense(8)(drop(keras.layers.Flatten()(hidden))))
    model = keras.Model(inputs, keras.layers.Dense(networks.CLASSES)(hidden))
    if optimizer == "sgd":
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5)
    model.compile(optimizer, networks.crossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


def assert_split_equals_keras(make, x, y, *, rtol=1e-5, splits=3, **arguments):
    # 203 rows in batches of 40 and 3 parts: parts of 13 and 14 rows, a last batch of 3 parts of one.
    # Most tests take 120 rows: without a last batch of another size one step is traced.
    arguments = {"batch_size": 40, "epochs": 2, "verbose": 0, **arguments}
    expected, actual = make(), make()
    plain = expected.fit(x, y, **arguments)
    split = Trainer(actual, execution=ExecutionPlan(batch_splits=splits)).fit(x, y, **arguments)
    networks.assert_same_history(split.history, plain.history, rtol=rtol)
    networks.assert_same_weights(actual, expected, rtol=rtol)


def test_uneven_parts_and_last_batch_equal_keras():
    assert_split_equals_keras(lambda: networks.sequential("sgd"), *networks.arrays())


def test_several_outputs_with_loss_weights_equal_keras():
    assert_split_equals_keras(networks.functional, *networks.functional_data(120))


def test_sample_weights_regulariser_clipping_and_shared_dropout_equal_keras():
    x, y = images(48)
    weights = np.linspace(0.0, 2.0, len(x)).astype("float32")
    assert_split_equals_keras(cnn, x, y, batch_size=16, sample_weight=weights)


def test_last_batch_smaller_than_the_parts_equals_keras():
    x, y = images(50)  # batches of 16: the last has 2 rows for 4 parts
    assert_split_equals_keras(cnn, x, y, batch_size=16, splits=4)


# The optimizer is not split: that of the first test sees the same gradients.
@pytest.mark.nightly
def test_adam_stays_close_to_keras():
    """Adam divides by the root of squared gradients, which magnifies a rounding error near zero."""
    assert_split_equals_keras(lambda: networks.sequential("adam"), *networks.arrays(), rtol=1e-3)


def test_embedding_keeps_its_sparse_gradient():
    keras.utils.set_random_seed(3)
    tokens = np.random.default_rng(0).integers(0, 20, (32, 6))

    def make():
        keras.utils.set_random_seed(7)
        layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(20, 4), keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), networks.crossentropy())
        return model

    assert_split_equals_keras(make, tokens, tokens[:, 0] % 2, batch_size=8)


def test_loss_that_mixes_rows_equals_keras():
    """Dice has one value for the whole batch; it cannot be averaged over parts, and need not be."""

    def make():
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3, activation="sigmoid")])
        model.compile(keras.optimizers.SGD(0.1), keras.losses.Dice())
        return model

    x, y = networks.arrays(120)
    assert_split_equals_keras(make, x, keras.ops.one_hot(y % 3, 3).numpy())


def _with_loss(loss, *, per_row=3):
    """A model of `per_row` outputs a row, or, for 0, of one without an axis of its own."""

    def make():
        keras.utils.set_random_seed(7)
        layers = [keras.Input((12,)), keras.layers.Dense(max(per_row, 1), activation="sigmoid")]
        model = keras.Sequential([*layers, *([] if per_row else [keras.layers.Reshape(())])])
        model.compile(keras.optimizers.SGD(0.1, clipnorm=1.0), loss())
        return model

    return make


LOSSES = {
    "mean": keras.losses.MeanSquaredError,
    "mean of elements": lambda: "binary_crossentropy",
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "by weights": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    "by row": lambda: keras.losses.CosineSimilarity(axis=-1),
    "found by Keras": lambda: "crossentropy",
    "by column": lambda: keras.losses.CosineSimilarity(axis=0),
    "own": lambda: lambda y, y_pred: keras.ops.max(keras.ops.abs(y - y_pred)),
}


ONE_VALUE = ("by column", "own")  # no row's, so that Keras has nothing to weigh
# Each loss once, and two without weights: what is left out is nightly.
EACH_LOSS = [(loss, loss not in ONE_VALUE) for loss in LOSSES] + [("mean", False), ("sum", False)]
MORE_LOSSES = [(loss, False) for loss in LOSSES if (loss, False) not in EACH_LOSS]


@pytest.mark.parametrize(
    ("loss", "weighted"),
    [*EACH_LOSS, *(pytest.param(*case, marks=pytest.mark.nightly) for case in MORE_LOSSES)],
)
@pytest.mark.by_default("mean-True", "by weights-True", "by column-False", "sum-False")
def test_losses_equal_keras_however_they_reduce_the_rows(loss, weighted):
    # Without weights the last batch is smaller; with them all are alike, so that one step is traced.
    rows, batch_size = (204, 68) if weighted else (203, 40)
    x, _ = networks.arrays(rows)
    y = np.random.default_rng(1).random((len(x), 3), "float32")
    weights = np.linspace(0.5, 2.0, len(x)).astype("float32") if weighted else None
    assert_split_equals_keras(_with_loss(LOSSES[loss]), x, y, sample_weight=weights, batch_size=batch_size)


@pytest.mark.parametrize("loss", ["mean_squared_error", "cosine_similarity"])
@pytest.mark.by_default("cosine_similarity")
def test_outputs_without_an_axis_of_their_own_equal_keras(loss):
    """Losses reduce the last axis, which is the rows' here."""
    x, _ = networks.arrays(120)
    y = np.random.default_rng(1).random(len(x), "float32")
    assert_split_equals_keras(_with_loss(lambda: loss, per_row=0), x, y)


def test_labels_that_keras_pairs_with_every_row_equal_keras():
    """One label for each row, where the outputs have an axis of one more: Keras broadcasts all to all."""

    def make():
        keras.utils.set_random_seed(7)
        layers = [keras.Input((12,)), keras.layers.Reshape((4, 3)), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
        return model

    x, _ = networks.arrays()
    assert_split_equals_keras(make, x, np.random.default_rng(1).random(len(x), "float32"))


def test_a_loss_that_looks_at_all_labels_equals_keras():
    """Hinge takes labels for 0 and 1 unless there is a -1 anywhere in the batch."""
    x, _ = networks.arrays(120)
    y = np.sort(np.random.default_rng(1).integers(-1, 2, (len(x), 3)), axis=0)
    assert_split_equals_keras(_with_loss(lambda: "hinge"), x, y.astype("float32"), shuffle=False)


@pytest.mark.parametrize("shape", [(3,), (4, 3)])
@pytest.mark.by_default("shape1")
def test_weights_of_elements_and_rows_equal_keras(shape):
    def make():
        keras.utils.set_random_seed(7)
        layers = [keras.Input((12,)), keras.layers.Dense(12), keras.layers.Reshape((*shape[:-1], -1))]
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
        return model

    x, _ = networks.arrays(120)
    rng = np.random.default_rng(1)
    y, weights = rng.random((len(x), *shape), "float32"), rng.random((len(x), *shape[:-1]), "float32")
    assert_split_equals_keras(make, x, y, sample_weight=weights)


def test_one_label_for_all_rows_is_not_lost():
    """Keras broadcasts a label of one row. A dataset that does not say so cannot be split unnoticed."""
    x = np.random.default_rng(0).random((8, 12), "float32")
    signature = (tf.TensorSpec((None, 12)), tf.TensorSpec((None, 3)))
    data = tf.data.Dataset.from_generator(
        lambda: [(x, np.ones((1, 3), "float32"))], output_signature=signature
    )
    trainer = Trainer(_with_loss(lambda: "mean_squared_error")(), execution=ExecutionPlan(batch_splits=2))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected (begin|size)\[0\] in"):
        trainer.fit(data, verbose=0)


class Probabilities(keras.layers.Layer):
    """A softmax that leaves no logits at its output, only under it."""

    def call(self, inputs):
        return tf.nn.softmax(inputs)


def _saturated(*heads, loss="sparse_categorical_crossentropy", metrics=("accuracy",)):
    """Outputs of which many are rounded to 0 or 1, with a learning rate small enough to stay so."""

    def make():
        keras.utils.set_random_seed(7)
        inputs = keras.Input((12,))
        outputs = [head(name=f"head_{i}")(keras.layers.Dense(3)(inputs)) for i, head in enumerate(heads)]
        model = keras.Model(inputs, outputs if len(heads) > 1 else outputs[0])
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=64.0)
        several = len(heads) > 1
        given = [loss for _ in heads] if several else loss
        # Made for each model: one that two share would come to the second with what the first has counted.
        made = [[metric() if isinstance(metric, type) else metric for metric in metrics] for _ in heads]
        model.compile(scaled, given, metrics=made if several else made[0])
        return model

    return make


SATURATED = {
    "one output, parts apart": _saturated(keras.layers.Softmax),
    "a metric of the logits": _saturated(
        keras.layers.Softmax, metrics=[keras.metrics.SparseCategoricalCrossentropy]
    ),
    "two outputs": _saturated(keras.layers.Softmax, keras.layers.Softmax),
    "a sum": _saturated(
        keras.layers.Softmax, loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    ),
    "an operation of TensorFlow": _saturated(Probabilities),
    "two operations": _saturated(Probabilities, Probabilities),
    "an operation and an activation": _saturated(Probabilities, keras.layers.Softmax),
}


# "an operation and an activation" has two outputs too.
NIGHTLY = ("two outputs", "two operations")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=(pytest.mark.nightly,) if name in NIGHTLY else ()) for name in SATURATED],
)
@pytest.mark.by_default("an operation and an activation")
def test_a_saturated_softmax_and_loss_scaling_equal_keras(name):
    """Keras takes the logits from under the activation: from probabilities there would be no gradient."""
    x, y = networks.arrays(204)
    labels = [y % 3, (y + 1) % 3] if "two" in name or "and" in name else y % 3
    assert_split_equals_keras(SATURATED[name], 30 * x, labels, batch_size=68)


@pytest.mark.parametrize("activation", ["sigmoid", tf.nn.sigmoid])
@pytest.mark.by_default("sigmoid1")
def test_a_saturated_sigmoid_equals_keras(activation):
    def make():
        keras.utils.set_random_seed(7)
        layers = [keras.Input((12,)), keras.layers.Dense(1), keras.layers.Activation(activation)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(1e-4), keras.losses.BinaryCrossentropy(reduction="sum"))
        return model

    x, y = networks.arrays(120)
    assert_split_equals_keras(make, 100 * x, (y % 2)[:, None].astype("float32"))


def test_a_loss_that_gathers_rows_equals_keras():
    def first_of_the_batch(y, y_pred):
        return keras.ops.mean((keras.ops.take(y_pred - y, [0, 1], axis=0)) ** 2)

    x, _ = networks.arrays(200)
    y = np.random.default_rng(1).random((len(x), 3), "float32")
    assert_split_equals_keras(_with_loss(lambda: first_of_the_batch), x, y)


def test_dropout_of_what_all_rows_share_equals_keras():
    class Positions(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.drop = keras.layers.Dropout(0.5, seed=3)

        def build(self, shape):
            self.table = self.add_weight(shape=(1, shape[-1]), initializer="ones")

        def call(self, inputs, training=False):
            return inputs + self.drop(self.table, training=training)

    def make():
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((12,)), Positions(), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), networks.crossentropy())
        return model

    x, y = networks.arrays(120)
    assert_split_equals_keras(make, x, y % 3)


def test_an_ignored_class_equals_keras():
    """What is left is counted over the batch; parts have different shares of it."""

    def make():
        keras.utils.set_random_seed(7)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model

    x, y = networks.arrays(120)
    assert_split_equals_keras(make, x, np.sort(y % 3), shuffle=False)


def _reached(targets):
    """The names of all operations that must be done before some tensors are there."""
    seen, open_ends = set(), [tensor.op for tensor in targets]
    while open_ends:
        operation = open_ends.pop()
        if operation.name not in seen:
            seen.add(operation.name)
            open_ends += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return seen


@pytest.mark.parametrize(("loss", "waits"), [("mean_squared_error", False), ("dice", True)])
def test_parts_wait_for_each_other_only_where_the_loss_needs_all_rows(monkeypatch, loss, waits):
    model = _with_loss(lambda: loss)()
    x = tf.constant(np.random.default_rng(0).random((8, 12), "float32"))
    y = tf.constant(np.random.default_rng(1).random((8, 3), "float32"))
    model.train_on_batch(x, y)
    tapes, gradients, outputs = [], [], []
    stock_forward = splitting.keras_training.forward

    def forward(*arguments):
        outputs.append(stock_forward(*arguments))
        return outputs[-1]

    class Tape(tf.GradientTape):
        def __init__(self):
            super().__init__()
            tapes.append(self)

        def gradient(self, *arguments, **options):
            result = super().gradient(*arguments, **options)
            gradients.append((self, result))
            return result

    monkeypatch.setattr(splitting.keras_training, "forward", forward)
    monkeypatch.setattr(splitting.tf, "GradientTape", Tape)
    step = splitting.SplitStep(model, 2, whole=lambda batch: {})
    tf.function(lambda: step((x, y)), autograph=False).get_concrete_function()
    (of_first,) = (result for tape, result in gradients if tape is tapes[0])
    needed = _reached(of_first)
    assert outputs[0].op.name in needed
    assert (outputs[1].op.name in needed) == waits
