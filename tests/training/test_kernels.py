"""Stock layers and Adam on faster operations train as under Keras, and are the same afterwards."""

from __future__ import annotations

import functools
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._training import kernels
from overlap_train._training.kernels import find_kernels, fused_batch_normalization, has_slow_gradient
from overlap_train.conv import library
from tests import networks

RNG = np.random.default_rng(5)


def assert_close(results, **tolerances):
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, **tolerances)


@pytest.mark.parametrize("shape", [(6, 5), (6, 4, 3, 5), (3, 2, 4, 3, 5)])
@pytest.mark.parametrize(
    "options", [{}, {"scale": False}, {"center": False, "momentum": 0.5}, {"epsilon": 0.1}]
)
def test_fused_normalisation_is_that_of_keras(shape, options):
    x = tf.constant(RNG.normal(3.0, 2.0, shape), tf.float32)
    weights = tf.constant(RNG.normal(size=shape), tf.float32)
    results = []
    for fused in (False, True):
        layer = keras.layers.BatchNormalization(**options)
        layer.build(shape)
        for number, variable in enumerate(layer.trainable_variables):
            variable.assign(np.linspace(0.5, 1.5, 5) + number)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = fused_batch_normalization(layer, x) if fused else layer(x, training=True)
            loss = tf.reduce_sum(y * weights)
        gradients = tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])
        results.append([y, *gradients, *layer.non_trainable_variables])
    assert_close(results, rtol=2e-5, atol=2e-5)


needs_library = pytest.mark.skipif(
    not library.is_available(), reason="needs the compiled convolution, and so a C++ compiler"
)


def seeded(make):
    @functools.wraps(make)
    def from_seed(*arguments, **options):
        keras.utils.set_random_seed(7)
        return make(*arguments, **options)

    return from_seed


def sequence(*layers, optimizer=None, **options):
    model = keras.Sequential(layers)
    optimizer = optimizer or keras.optimizers.SGD(0.05)
    model.compile(optimizer, networks.crossentropy(), metrics=["accuracy"], **options)
    return model


@seeded
def network(**options):
    return sequence(
        keras.Input((12,)),
        keras.layers.Dense(24, use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.Reshape((4, 2, 3)),
        keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(trainable=False),
        keras.layers.BatchNormalization(axis=1),
        keras.layers.Flatten(),
        keras.layers.Dense(4),
        **options,
    )


@seeded
def convolution():
    layers = [keras.layers.Reshape((4, 3, 1)), keras.layers.Conv2D(5, 3, padding="same")]
    return sequence(keras.Input((12,)), *layers, keras.layers.Flatten(), keras.layers.Dense(4))


@seeded
def looking_up():
    layers = [keras.layers.Embedding(3000, 50), keras.layers.Flatten(), keras.layers.Dense(4)]
    return sequence(keras.Input((5,)), *layers, optimizer=keras.optimizers.Adam())


@seeded
def depthwise():
    layers = [
        keras.layers.Conv2D(64, 1),
        keras.layers.DepthwiseConv2D(3, padding="same", activation="relu"),
        keras.layers.DepthwiseConv2D(3, strides=2, use_bias=False),
        keras.layers.GlobalAveragePooling2D(),
    ]
    return sequence(keras.Input((6, 6, 2)), *layers, keras.layers.Dense(networks.CLASSES))


def images(rows=24):
    return RNG.normal(size=(rows, 6, 6, 2)).astype("float32"), RNG.integers(0, networks.CLASSES, rows)


TOKENS = np.tile(np.arange(5), (32, 1)), np.zeros(32, int)
ARRAYS = networks.arrays()  # of which the last batch is smaller
FAST = "no XLA, fast convolution, normalization"
TRAINED = {
    "in memory": (network, ARRAYS, {"loop": "in_memory"}, FAST),
    "iterator": (network, ARRAYS, {"loop": "iterator"}, FAST),
    "in parts": (convolution, ARRAYS, {"batch_splits": 3}, "3 splits, no XLA, fast convolution"),
    "sparse gradients": (looking_up, TOKENS, {}, "fast Adam"),
    "depthwise": pytest.param(depthwise, images(40), {}, "depthwise convolution", marks=needs_library),
}


@pytest.mark.cpu_only("the fast operations are for CPUs")
@pytest.mark.parametrize(("make", "data", "plan", "said"), TRAINED.values(), ids=TRAINED)
@pytest.mark.by_default("sparse gradients")
def test_training_on_fast_kernels_is_that_of_keras(make, data, plan, said):
    validation = tuple(part[:20] for part in data)
    arguments = {"batch_size": 32, "epochs": 2, "verbose": 0, "validation_data": validation}
    expected, actual = make(), make()
    plain = expected.fit(*data, **arguments)
    trainer = Trainer(actual, execution=ExecutionPlan(kernels="fast", jit=False, **plan))
    networks.assert_same_history(trainer.fit(*data, **arguments).history, plain.history, rtol=1e-4)
    networks.assert_same_weights(actual, expected, rtol=1e-3)
    assert any(said in text for text in trainer.messages)


def traced_operations(function, *arguments):
    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
    return {operation.type for operation in graph.get_operations()}


def swapped(model):
    return [layer for layer in model.layers if "call" in vars(layer)]


def test_layers_are_swapped_while_traced_and_for_that_thread_only():
    model, elsewhere = network(), []

    def step(x):
        def other():
            elsewhere.append(traced_operations(lambda x: model(x, training=True), x))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return model(x, training=True)

    x = tf.zeros((4, 12))
    assert "FusedBatchNormV3" in traced_operations(find_kernels(model).around(step, 4), x)
    assert "FusedBatchNormV3" not in elsewhere[0]
    assert not swapped(model)
    assert "FusedBatchNormV3" not in traced_operations(step, x)

    def fails(x):
        assert swapped(model)
        raise RuntimeError("while tracing")

    with pytest.raises(RuntimeError, match="while tracing"):
        find_kernels(model).around(fails, None)(x)
    assert not swapped(model)


class Ghost(keras.layers.BatchNormalization):
    def _moments(self, inputs, mask):
        return tf.zeros([3]), tf.ones([3])


class Own(keras.layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) * 2


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.BatchNormalization(synchronized=True),
        *(keras.layers.BatchNormalization(dtype=dtype) for dtype in ("float64", "mixed_float16")),
        *(Own(), Ghost(), keras.layers.Dense(3)),
        keras.layers.BatchNormalization(name="of_a_loss_with_a_gradient_penalty"),
    ],
    ids=["synchronized", "float64", "mixed", "own", "ghost", "dense", "penalty"],
)
def test_other_layers_stay_as_they_are(layer):
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    if "loss" in layer.name:
        model.compute_loss = lambda *parts: 0.0
    assert find_kernels(model) is None


def test_what_excludes_fast_kernels_says_so():
    with pytest.raises(ValueError, match=r"kernels=.fast. is not possible where XLA"):
        Trainer(network(jit_compile=True), execution=ExecutionPlan(kernels="fast")).fit(
            *networks.arrays(), verbose=0
        )


ADAMS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.5),
    "schedule": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.05, 3, 0.5), beta_1=0.5, epsilon=1e-3, use_ema=True
    ),
}


@pytest.mark.cpu_only("the fast operations are for CPUs")
@pytest.mark.nightly
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", ADAMS)
def test_training_with_fused_adam_is_that_of_keras(name, scaled):
    def make():
        return keras.optimizers.LossScaleOptimizer(ADAMS[name]()) if scaled else ADAMS[name]()

    results = []
    for choice in ("keras", "fast"):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(12000), keras.layers.Dense(4)])
        model.compile(make(), networks.crossentropy())
        trainer = Trainer(model, execution=ExecutionPlan(kernels=choice, jit=False))
        trainer.fit(*networks.arrays(64), batch_size=16, verbose=0)
        variables = (*model.variables, *model.optimizer.variables)
        results.append([keras.ops.convert_to_numpy(v) for v in variables])
    for theirs, ours in zip(*results, strict=True):
        # Adam divides by the root of what may be next to nothing: single weights magnify rounding.
        assert np.linalg.norm(ours - theirs) <= 1e-4 * np.linalg.norm(theirs) + 1e-7


@seeded
def deep(layers=13):
    """A network of many parts: two variables and one normalisation in each layer."""
    hidden = []
    for _ in range(layers):
        hidden.append(keras.layers.Conv2D(2, 3, padding="same", use_bias=False))
        hidden.append(keras.layers.BatchNormalization(scale=False))
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(networks.CLASSES)]
    return sequence(keras.Input((6, 6, 2)), *hidden, *head, optimizer=keras.optimizers.Adam())


@pytest.mark.nightly
@pytest.mark.default_options
@pytest.mark.parametrize(("layers", "epochs"), [(4, 34), (13, 1)])
def test_long_runs_and_models_of_many_parts_train_on_the_faster_operations(monkeypatch, layers, epochs):
    monkeypatch.setattr(kernels.library, "is_built", lambda: False)
    trainer, plain, (x, y) = Trainer(deep(layers)), deep(layers), images()
    arguments = {"batch_size": 8, "epochs": epochs, "verbose": 0, "shuffle": False}
    ours, theirs = trainer.fit(x, y, **arguments), plain.fit(x, y, **arguments)
    assert "plan: in_memory, no splits, no XLA, fast normalization, Adam" in trainer.messages
    np.testing.assert_allclose(ours.history["loss"][0], theirs.history["loss"][0], rtol=1e-3)


@pytest.mark.nightly
@pytest.mark.default_options
@pytest.mark.parametrize(
    ("layers", "plan"), [(4, ExecutionPlan()), (13, ExecutionPlan(kernels="keras"))], ids=["short", "asked"]
)
def test_short_runs_of_few_parts_and_who_asks_for_it_keep_the_last_bit_of_keras(layers, plan):
    trainer = Trainer(deep(layers), execution=plan)
    trainer.fit(*images(), batch_size=8, epochs=2, verbose=0)
    assert not [message for message in trainer.messages if "fast" in message]


def layer_of(channels: int = 64, **options) -> keras.layers.DepthwiseConv2D:
    layer = keras.layers.DepthwiseConv2D(**{"kernel_size": 3, **options})
    layer.build((None, 9, 7, channels) if layer.data_format == "channels_last" else (None, channels, 9, 7))
    return layer


class OwnDepthwise(keras.layers.DepthwiseConv2D):
    def call(self, inputs):
        return super().call(inputs) * 2


GAINING = (layer_of(), layer_of(16, kernel_size=5), layer_of(16, kernel_size=(3, 1)))
NOT_GAINING = (
    layer_of(32),  # for which TensorFlow has a kernel of its own
    layer_of(8, kernel_size=5),
    *(layer_of(depth_multiplier=2), layer_of(dilation_rate=2), layer_of(data_format="channels_first")),
    *(layer_of(dtype="mixed_float16"), layer_of(dtype="float64")),
    *(keras.layers.DepthwiseConv2D(3), keras.layers.Conv2D(64, 3), OwnDepthwise(3)),
)


@pytest.mark.parametrize(
    ("layer", "expected"), [*((layer, True) for layer in GAINING), *((layer, False) for layer in NOT_GAINING)]
)
def test_which_layers_gain(monkeypatch, layer, expected):
    cards: list[object] = []
    monkeypatch.setattr(kernels.tf.config, "list_physical_devices", lambda kind: cards)
    assert has_slow_gradient(layer) is expected
    cards.append(object())
    assert not has_slow_gradient(layer), "on a GPU"
