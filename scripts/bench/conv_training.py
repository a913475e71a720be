"""Times whole training steps on our convolution beside TensorFlow's, and the share of convolution in them.

    python -m scripts.bench.conv_training --model unet --batch 1 --output results.json

Paper P2's Table 1 gives convolution's share of a U-Net step; the share bounds what any convolution, however
fast, can gain (Amdahl), and the bound is printed beside what was reached. The share is measured: the step's
own convolutions, each direction timed alone at its shape on tf.nn.conv2d, over the time of the stock step.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from overlap_train.conv import accelerate, library, selection
from overlap_train.conv.acceleration import acceleration_report
from overlap_train.conv.convolution import Convolution
from overlap_train.conv.shapes import STOCK
from overlap_train.models.unet import unet
from scripts.bench.conv_layers import machine

__all__ = ["MODELS", "measure"]


def _vgg16() -> tuple[keras.Model, tuple[int, ...], tuple[int, ...], int]:
    return (
        keras.applications.VGG16(weights=None, classes=1000, classifier_activation=None),
        (224, 224, 3),
        (),
        1000,
    )


def _unet() -> tuple[keras.Model, tuple[int, ...], tuple[int, ...], int]:
    return unet((128, 191, 3), 3), (128, 191, 3), (128, 191), 3


def _mnist() -> tuple[keras.Model, tuple[int, ...], tuple[int, ...], int]:
    from overlap_train.models.mnist_cnn import mnist_cnn

    return mnist_cnn(), (28, 28, 1), (), 10


MODELS: dict[str, Callable[[], tuple[keras.Model, tuple[int, ...], tuple[int, ...], int]]] = {
    "unet": _unet,
    "vgg16": _vgg16,
    "mnist": _mnist,
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


def measure(name: str, batch: int, rounds: int) -> dict[str, Any]:
    """Times the stock and the accelerated step in turn.

    Args:
        name: a key of `MODELS`.
        batch: images in a step.
        rounds: timed steps of each.

    Returns:
        Milliseconds (quartiles) of both steps, their ratio, convolution's share, the bound, and the timings
        of layers.
    """
    keras.utils.set_random_seed(0)
    stock, image_shape, label_shape, classes = MODELS[name]()
    ours = MODELS[name]()[0]
    ours.set_weights(stock.get_weights())
    accelerate(ours, batch_size=batch, verbose=0)
    generator = np.random.default_rng(0)
    images = tf.constant(generator.standard_normal((batch, *image_shape)), tf.float32)
    labels = tf.constant(generator.integers(0, classes, (batch, *label_shape)), tf.int32)
    steps = {"stock": _step_of(stock, images, labels), "ours": _step_of(ours, images, labels)}
    losses = {contestant: float(step()["loss"]) for contestant, step in steps.items()}
    contestants = {**steps, "stock convolutions": _stock_convolutions(ours)}
    for run in contestants.values():
        run()
    samples: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant, run in contestants.items():
            start = time.perf_counter()
            run()
            samples[contestant].append(1e3 * (time.perf_counter() - start))
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="unet")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    library.load()
    result = measure(options.model, options.batch, options.rounds)
    bound = f"{result['amdahl_bound']:.2f}" if result["amdahl_bound"] else "(disturbed, no bound)"
    stock, ours = (result["milliseconds_quartiles"][name] for name in ("stock", "ours"))
    print(
        f"{options.model}, batch {options.batch}: stock {stock[1]:.1f} ms "
        f"[{stock[0]:.1f}, {stock[2]:.1f}], ours "
        f"{ours[1]:.1f} ms [{ours[0]:.1f}, {ours[2]:.1f}], ratio {result['ratio']:.2f}; convolution "
        f"{100 * result['convolution_share']:.0f}% of the stock step, so at most {bound}"
    )
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"machine": machine(), **result}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
