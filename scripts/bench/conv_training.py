"""Times whole training steps on our convolution next to TensorFlow's, and the share of convolution in them.

    python -m scripts.bench.conv_training unet 1

Paper P2's Table 1 gives convolution's share of a U-Net step; the share bounds what any convolution, however
fast, can gain (Amdahl). It is measured: the step's own convolutions, each direction timed alone at its shape
on tf.nn.conv2d, over the time of the stock step. The last line of standard output is JSON.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from overlap_train.conv import accelerate, library, selection
from overlap_train.conv.acceleration import acceleration_report
from overlap_train.conv.convolution import Convolution
from overlap_train.conv.selection import STOCK
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.models.unet import unet
from scripts.bench.conv_layers import interleave

# The network, the shapes of an image and of its label, and the classes.
MODELS: dict[str, tuple[Callable[[], keras.Model], tuple[int, ...], tuple[int, ...], int]] = {
    "unet": (lambda: unet((128, 191, 3), 3), (128, 191, 3), (128, 191), 3),
    "vgg16": (
        lambda: keras.applications.VGG16(weights=None, classes=1000, classifier_activation=None),
        (224, 224, 3),
        (),
        1000,
    ),
    "mnist": (mnist_cnn, (28, 28, 1), (), 10),
}


def measure(name: str, batch: int) -> dict[str, Any]:
    """Times the stock and the accelerated step in rounds of random order.

    Returns:
        Milliseconds (quartiles) of both steps, their ratio, convolution's share and the bound.
    """
    keras.utils.set_random_seed(0)
    make, image_shape, label_shape, classes = MODELS[name]
    stock, ours = make(), make()
    ours.set_weights(stock.get_weights())
    accelerate(ours, batch_size=batch, verbose=0)
    generator = np.random.default_rng(0)
    images = tf.constant(generator.standard_normal((batch, *image_shape)), tf.float32)
    labels = tf.constant(generator.integers(0, classes, (batch, *label_shape)), tf.int32)
    steps = {"stock": _step_of(stock, images, labels), "ours": _step_of(ours, images, labels)}
    losses = {contestant: float(step()["loss"]) for contestant, step in steps.items()}
    samples = interleave({**steps, "stock convolutions": _stock_convolutions(ours)}, 1.0)
    quartiles = {contestant: statistics.quantiles(times, n=4) for contestant, times in samples.items()}
    share = quartiles["stock convolutions"][1] / quartiles["stock"][1]
    return {
        "model": name,
        "batch": batch,
        "first_loss": losses,
        "milliseconds_quartiles": quartiles,
        "ratio": quartiles["stock"][1] / quartiles["ours"][1],
        "convolution_share": share,
        # Layers timed alone can add up to more than the step only if something disturbed them.
        "amdahl_bound": 1 / (1 - share) if share < 1 else None,
    }


def _step_of(model: keras.Model, images: tf.Tensor, labels: tf.Tensor) -> Callable[[], Any]:
    """One compiled training step, forward, backward and SGD, on a batch that is there already."""
    model.compile(
        keras.optimizers.SGD(1e-4),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    model.optimizer.build(model.trainable_variables)
    step = tf.function(model.train_step, autograph=False).get_concrete_function((images, labels))
    return lambda: {name: value.numpy() for name, value in step((images, labels)).items()}


def _stock_convolutions(model: keras.Model) -> Callable[[], None]:
    """All convolutions of a training step on tf.nn.conv2d, one after the other.

    The first layer's input gradient is left out: training never computes it.
    """
    calls = []
    for index, rows in enumerate(acceleration_report(model).timings.values()):
        for key in (row.key for row in rows):
            if index == 0 and key.direction == "input_gradient":
                continue
            function = Convolution.of(key).function(key.direction, STOCK, key)
            operands = selection.operands(key)
            compiled = tf.function(function, autograph=False).get_concrete_function(*operands)
            calls.append(functools.partial(compiled, *operands))

    def run() -> None:
        for call in calls:
            call()

    return run


if __name__ == "__main__":
    library.load()
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
