"""A step in parts is the step of the whole batch, and is not taken where that cannot be known."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._training import splitting
from overlap_train._training.splitting import find_obstacle
from tests import networks
from tests.test_parity import OwnLogs


def spec_of(*arrays):
    return keras.tree.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), arrays)


def test_a_subclassed_model_is_an_obstacle():
    model = networks.subclassed()
    model.evaluate(*networks.arrays(), verbose=0)
    assert "Awkward" in find_obstacle(model, spec_of(*networks.arrays()))


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


def compiled(inputs, outputs):
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def test_inputs_that_cannot_be_divided_by_rows_are_an_obstacle():
    labels = tf.TensorSpec([None, 3])
    sparse = keras.Input((6,), sparse=True)
    spec = (tf.SparseTensorSpec([None, 6]), labels)
    assert "sparse" in find_obstacle(compiled(sparse, keras.layers.Dense(3)(sparse)), spec)
    inputs = [keras.Input((6,)), keras.Input((6,))]
    two = compiled(inputs, keras.layers.Dense(3)(keras.layers.Add()(inputs)))
    spec = ((tf.TensorSpec([None, 6]), tf.TensorSpec([1, 6])), labels)
    assert "number of rows" in find_obstacle(two, spec)
    fixed = keras.Input(batch_shape=(8, 6))
    spec = (tf.TensorSpec([8, 6]), tf.TensorSpec([8, 3]))
    assert "any number of rows" in find_obstacle(compiled(fixed, keras.layers.Dense(3)(fixed)), spec)
    # Losses reduce the last axis, which is the rows' here.
    scalars = keras.layers.Reshape(())(keras.layers.Dense(1)(inputs[0]))
    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None]))
    assert "any number of rows" in find_obstacle(compiled(inputs[0], scalars), spec)


OBSTACLES = {
    "noise": (lambda: keras.layers.GaussianNoise(0.1), "GaussianNoise"),
    "statistics": (lambda: keras.layers.BatchNormalization(), "BatchNormalization"),
    "activity": (lambda: keras.layers.Dense(4, activity_regularizer="l2"), "has activity_regularizer"),
    "a function": (lambda: keras.layers.Lambda(_minus_mean), "Lambda"),
    "an axis": (lambda: keras.layers.Softmax(axis=0), "axis 0"),
    "an axis from behind": (lambda: keras.layers.Softmax(axis=-2), "axis -2"),
    "axes": (lambda: keras.layers.UnitNormalization(axis=[-2]), r"axis [-2]"),
    "an activation": (lambda: keras.layers.Dense(4, activation=_minus_mean), "the activation of Dense"),
    "own activation": (lambda: keras.layers.Activation(_minus_mean), "the activation of Activation"),
    "seeds": (
        lambda: keras.Sequential([keras.layers.Reshape((4, 3)), keras.layers.LSTM(3, dropout=0.1)]),
        "draws random numbers",
    ),
    "masks": (
        lambda: keras.Sequential(
            [keras.layers.Embedding(9, 2, mask_zero=True), keras.layers.GlobalAveragePooling1D()]
        ),
        "has mask_zero",
    ),
}


@pytest.mark.parametrize(("layer", "says"), OBSTACLES.values(), ids=OBSTACLES)
def test_what_may_mix_rows_or_has_state_is_an_obstacle(layer, says):
    x, y = networks.arrays()
    assert says in find_obstacle(sequential_with(layer()), spec_of(x, y))


def test_own_train_step_is_an_obstacle():
    trainer = Trainer(networks.linear(kind=OwnLogs), execution=ExecutionPlan(batch_splits=2))
    with pytest.raises(ValueError, match=r"batch_splits=2 is not possible.*train_step"):
        trainer.fit(*networks.arrays(), verbose=0)


def test_looking_for_obstacles_changes_nothing():
    model = networks.sequential()
    x, y = networks.arrays()
    model.evaluate(x, y, verbose=0)
    before = [v.numpy() for v in model.variables + model.metrics_variables]
    assert find_obstacle(model, spec_of(x, y)) is None
    for value, variable in zip(before, model.variables + model.metrics_variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())
    assert not any("call" in vars(layer) for layer in model.layers)


def test_attention_is_none():
    x = keras.Input((5, 6))
    y = keras.layers.MultiHeadAttention(2, 3)(x, x)
    model = compiled(
        x, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(keras.layers.Add()([x, y])))
    )
    assert find_obstacle(model, (tf.TensorSpec([None, 5, 6]), tf.TensorSpec([None, 1]))) is None


def images(rows):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, 8, 8, 1)).astype("float32"), rng.integers(0, networks.CLASSES, rows)


def cnn():
    """Convolution, two calls of one Dropout, a regulariser, gradient clipping, weighted metrics."""
    keras.utils.set_random_seed(7)
    inputs = keras.Input((8, 8, 1))
    drop = keras.layers.Dropout(0.3)
    hidden = keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2")(inputs)
    hidden = drop(keras.layers.Dense(8)(drop(keras.layers.Flatten()(hidden))))
    model = keras.Model(inputs, keras.layers.Dense(networks.CLASSES)(hidden))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=0.5)
    model.compile(optimizer, networks.crossentropy(), metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


def first_of_the_batch(y, y_pred):
    return keras.ops.mean((keras.ops.take(y_pred - y, [0, 1], axis=0)) ** 2)


def sequence(*layers, loss, rate=0.1, features=12, dtype=None, **options):
    """Returns a function that makes a model of layers, each of which is made anew by a function."""

    def make():
        keras.utils.set_random_seed(7)
        entry = keras.Input((features,), dtype=dtype)
        model = keras.Sequential([entry, *(layer() for layer in layers)])
        model.compile(keras.optimizers.SGD(rate, **options), loss() if callable(loss) else loss)
        return model

    return make


def dense(units, **options):
    return lambda: keras.layers.Dense(units, **options)


def shaped(*shape):
    return lambda: keras.layers.Reshape(shape)


def embedding():
    return keras.layers.Embedding(20, 4)


def with_loss(loss):
    return sequence(dense(3, activation="sigmoid"), loss=loss, clipnorm=1.0)


def uniform(*shape, seed=1):
    return np.random.default_rng(seed).random(shape, "float32")


def assert_split_equals_keras(make, x, y, *, rtol=1e-5, splits=3, **arguments):
    # 203 rows in batches of 40 and 3 parts: parts of 13 and 14 rows, a last batch of 3 parts of one.
    # Most tests take 120 rows: without a last batch of another size one step is traced.
    arguments = {"batch_size": 40, "epochs": 2, "verbose": 0, **arguments}
    expected, actual = make(), make()
    plain = expected.fit(x, y, **arguments)
    split = Trainer(actual, execution=ExecutionPlan(batch_splits=splits)).fit(x, y, **arguments)
    networks.assert_same_history(split.history, plain.history, rtol=rtol)
    networks.assert_same_weights(actual, expected, rtol=rtol)


def saturated(heads, **options):
    """Outputs of which many are rounded to 0 or 1, with a rate small enough to stay so, and scaled losses."""

    def make():
        keras.utils.set_random_seed(7)
        inputs = keras.Input((12,))
        outputs = [keras.layers.Softmax(name=f"{n}")(keras.layers.Dense(3)(inputs)) for n in range(heads)]
        model = keras.Model(inputs, outputs if heads > 1 else outputs[0])
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1e-3), initial_scale=64.0)
        loss = keras.losses.SparseCategoricalCrossentropy(**options)
        model.compile(scaled, [loss] * heads if heads > 1 else loss)
        return model

    return make


X, Y = networks.arrays(120)
TOKENS = np.random.default_rng(0).integers(0, 20, (32, 6))
SPARSE = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)
SUMMED = functools.partial(keras.losses.BinaryCrossentropy, reduction="sum")
# What makes a model, x, y and how it is trained.
EQUAL = {
    "uneven parts, last batch smaller": (lambda: networks.sequential("sgd"), *networks.arrays(), {}),
    "several outputs with loss weights": (networks.functional, *networks.functional_data(120), {}),
    "sample weights, regulariser, clipping, shared dropout": (
        *(cnn, *images(48)),
        {"batch_size": 16, "sample_weight": np.linspace(0.0, 2.0, 48).astype("float32")},
    ),
    "last batch of fewer rows than parts": (cnn, *images(50), {"batch_size": 16, "splits": 4}),
    "sparse gradient of an embedding": (
        sequence(embedding, keras.layers.Flatten, dense(2), loss=SPARSE, features=6, dtype="int32"),
        *(TOKENS, TOKENS[:, 0] % 2, {"batch_size": 8}),
    ),
    # one value for the whole batch; it cannot be averaged over parts, and need not be
    "loss that mixes rows": (
        sequence(dense(3, activation="sigmoid"), loss=keras.losses.Dice),
        *(X, np.eye(3, dtype="float32")[Y % 3], {}),
    ),
    # one label for each row, where the outputs have an axis of one more: Keras broadcasts all to all
    "labels paired with every row": (
        sequence(shaped(4, 3), dense(1), loss="mean_squared_error"),
        *(networks.arrays()[0], uniform(networks.ROWS), {}),
    ),
    # hinge takes labels for 0 and 1 unless there is a -1 anywhere in the batch
    "loss that looks at all labels": (
        with_loss("hinge"),
        *(X, np.sort(np.random.default_rng(1).integers(-1, 2, (120, 3)), axis=0).astype("float32")),
        {"shuffle": False},
    ),
    "weights of elements": (
        sequence(dense(12), shaped(4, 3), dense(3), loss="mean_squared_error"),
        *(X, uniform(120, 4, 3), {"sample_weight": uniform(120, 4, seed=2)}),
    ),
    "loss that gathers rows": (
        with_loss(lambda: first_of_the_batch),
        *(networks.arrays(200)[0], uniform(200, 3), {}),
    ),
    # what is left is counted over the batch; parts have different shares of it
    "ignored class": (
        sequence(dense(3), loss=functools.partial(SPARSE, ignore_class=0)),
        *(X, np.sort(Y % 3), {"shuffle": False}),
    ),
    # Keras takes the logits from under the activation: from probabilities there would be no gradient
    "saturated sigmoid": (
        sequence(dense(1, activation=tf.nn.sigmoid), loss=SUMMED, rate=1e-4),
        *(100 * X, (Y % 2)[:, None].astype("float32"), {}),
    ),
    "saturated softmax, parts apart": (saturated(1), 30 * X, Y % 3, {}),
    "saturated softmax, two outputs": (saturated(2), 30 * X, [Y % 3, (Y + 1) % 3], {}),
    "saturated softmax, a sum": (saturated(1, reduction="sum"), 30 * X, Y % 3, {}),
}


@pytest.mark.by_default("ignored class", "saturated sigmoid")
@pytest.mark.parametrize(("make", "x", "y", "arguments"), EQUAL.values(), ids=EQUAL)
def test_training_in_parts_equals_keras(make, x, y, arguments):
    assert_split_equals_keras(make, x, y, **arguments)


LOSSES = {
    "mean": keras.losses.MeanSquaredError,
    "mean of elements": "binary_crossentropy",
    "sum": lambda: keras.losses.MeanSquaredError(reduction="sum"),
    "by weights": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
    "by row": lambda: keras.losses.CosineSimilarity(axis=-1),
    "found by Keras": "crossentropy",
    "by column": lambda: keras.losses.CosineSimilarity(axis=0),
    "own": lambda: lambda y, y_pred: keras.ops.max(keras.ops.abs(y - y_pred)),
}
ONE_VALUE = ("by column", "own")  # no row's, so that Keras has nothing to weigh


@pytest.mark.parametrize(
    ("loss", "weighted"),
    [(loss, weighted) for loss in LOSSES for weighted in {loss not in ONE_VALUE, False}],
)
@pytest.mark.by_default("by weights-True")
def test_losses_equal_keras_however_they_reduce_the_rows(loss, weighted):
    # Without weights the last batch is smaller; with them all are alike, so that one step is traced.
    rows, batch_size = (204, 68) if weighted else (203, 40)
    x, y = networks.arrays(rows)[0], uniform(rows, 3)
    weights = np.linspace(0.5, 2.0, rows).astype("float32") if weighted else None
    assert_split_equals_keras(with_loss(LOSSES[loss]), x, y, sample_weight=weights, batch_size=batch_size)


def test_one_label_for_all_rows_is_not_lost():
    """Keras broadcasts a label of one row. A dataset that does not say so cannot be split unnoticed."""
    x = uniform(8, 12)
    signature = (tf.TensorSpec((None, 12)), tf.TensorSpec((None, 3)))
    data = tf.data.Dataset.from_generator(
        lambda: [(x, np.ones((1, 3), "float32"))], output_signature=signature
    )
    trainer = Trainer(with_loss("mean_squared_error")(), execution=ExecutionPlan(batch_splits=2))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected (begin|size)\[0\] in"):
        trainer.fit(data, verbose=0)


@pytest.mark.parametrize(("loss", "apart"), [("mean_squared_error", True), ("dice", False)])
def test_parts_wait_for_each_other_only_where_the_loss_needs_all_rows(monkeypatch, loss, apart):
    taken = []
    for name in ("_apart", "_together"):
        way = getattr(splitting.SplitStep, name)
        monkeypatch.setattr(
            splitting.SplitStep, name, lambda *a, way=way, name=name: taken.append(name) or way(*a)
        )
    plan = ExecutionPlan(batch_splits=2)
    Trainer(with_loss(loss)(), execution=plan).fit(uniform(8, 12), uniform(8, 3), batch_size=8, verbose=0)
    assert set(taken) == {"_apart" if apart else "_together"}
