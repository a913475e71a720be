"""Faster operations for stock layers: Keras's numbers, and layers that are the same afterwards."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train.kernels import fast_kernels, fused_batch_normalization
from tests import models

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("shape", [(6, 5), (6, 4, 5), (6, 4, 3, 5), (3, 2, 4, 3, 5)])
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
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def network(**options):
    keras.utils.set_random_seed(7)
    frozen = keras.layers.BatchNormalization(trainable=False)
    model = keras.Sequential(
        [
            keras.Input((12,)),
            keras.layers.Dense(24, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Reshape((4, 2, 3)),
            keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
            frozen,
            keras.layers.BatchNormalization(axis=1),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), models.crossentropy(), metrics=["accuracy"], **options)
    return model


@pytest.mark.parametrize("loop", ["in_memory", "iterator"])
def test_training_on_fast_kernels_is_that_of_keras(loop):
    x, y = models.arrays()  # the last batch is smaller
    arguments = {"batch_size": 32, "epochs": 2, "verbose": 0, "validation_data": models.arrays(50, 1)}
    expected, actual = network(), network()
    plain = expected.fit(x, y, **arguments)
    plan = ExecutionPlan(loop=loop, kernels="fast")
    history = Trainer(actual, execution=plan).fit(x, y, **arguments)
    models.assert_same_history(history.history, plain.history, rtol=1e-4)
    models.assert_same_weights(actual, expected, rtol=1e-3)


def traced_operations(function, *arguments):
    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
    return {operation.type for operation in graph.get_operations()}


def test_layers_are_swapped_while_traced_and_for_that_thread_only():
    model = network()
    layers = [layer for layer in model.layers if "call" in vars(layer)]
    assert not layers
    around = fast_kernels(model, build=False)
    elsewhere = []

    def step(x):
        def other():
            elsewhere.append(traced_operations(lambda x: model(x, training=True), x))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return model(x, training=True)

    x = tf.zeros((4, 12))
    assert "FusedBatchNormV3" in traced_operations(around(step, 4), x)
    assert "FusedBatchNormV3" not in elsewhere[0]
    assert not [layer for layer in model.layers if "call" in vars(layer)]
    assert "FusedBatchNormV3" not in traced_operations(step, x)


def test_layers_are_as_before_after_an_error():
    model = network()

    def step(x):
        raise RuntimeError("while tracing")

    with pytest.raises(RuntimeError, match="while tracing"):
        fast_kernels(model, build=False)(step, None)(tf.zeros((4, 12)))
    assert not [layer for layer in model.layers if "call" in vars(layer)]


class Own(keras.layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) * 2


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.BatchNormalization(dtype="float64"),
        keras.layers.BatchNormalization(dtype="mixed_float16"),
        Own(),
        keras.layers.Dense(3),
    ],
    ids=["synchronized", "float64", "mixed", "own", "dense"],
)
def test_other_layers_stay_as_they_are(layer):
    assert fast_kernels(keras.Sequential([keras.Input((3,)), layer]), build=False) is None


def test_what_excludes_fast_kernels_says_so():
    with pytest.raises(ValueError, match="kernels must be one of 'auto', 'keras', 'fast'; got 'quick'"):
        ExecutionPlan(kernels="quick")
    for options in ({"jit": True}, {"loop": "eager"}):
        with pytest.raises(ValueError, match="kernels='fast'"):
            ExecutionPlan(kernels="fast", **options)
    with pytest.raises(ValueError, match=r"kernels=.fast. is not possible with model\.compile"):
        Trainer(network(jit_compile=True), execution=ExecutionPlan(kernels="fast")).fit(
            *models.arrays(), verbose=0
        )


def test_the_plan_names_them(capsys):
    Trainer(network(), execution=ExecutionPlan(kernels="fast", jit=False)).fit(*models.arrays(), verbose=1)
    assert "no XLA, fast kernels" in capsys.readouterr().out
