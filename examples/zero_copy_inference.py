"""Classifies single images with GoogLeNet, once by copying each image to TensorFlow and once without.

    .venv/bin/python examples/zero_copy_inference.py
    .venv/bin/python examples/zero_copy_inference.py --weights googlenet.weights.h5 --energy --device GPU:0

A producer (a camera, a decoder) writes an image into memory; the time is taken from there to the
probabilities on the host. The weights are random, from a seed, unless a file is given; the time does not
depend on them. Paper P3 measured this network on a Jetson TK1; where the GPU has memory of its own, expect
less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from overlap_train import zero_copy
from overlap_train.models.inception_v1 import inception_v1
from overlap_train.monitoring import energy


@dataclass(frozen=True)
class Way:
    """One way of classifying.

    Attributes:
        name: "copy" (what one writes without this package), "zero_copy", or on a GPU "pinned_copy", the copy
            from pinned memory that P3 compares with.
        seconds: of each run.
        bytes_copied: from the producer's memory, in each run.
        energy: what the GPUs' counters say, or why there is nothing.
    """

    name: str
    seconds: list[float]
    bytes_copied: int
    energy: str


def main(arguments: Sequence[str] | None = None) -> list[Way]:
    """Runs the example; returns what it printed."""
    options = _parse(arguments)
    keras.utils.set_random_seed(options.seed)
    model = inception_v1(input_shape=(options.size, options.size, 3))
    if options.weights:
        model.load_weights(options.weights)
    with tf.device(options.device):
        classify = tf.function(lambda images: model(images, training=False), autograph=False)
    images = np.random.default_rng(options.seed).normal(size=(8, options.size, options.size, 3))
    images = images.astype(np.float32)
    buffer = zero_copy.MappedBuffer((1, *images.shape[1:]), np.float32)
    share = buffer.choice(options.device, mode=options.mode)
    print(f"{buffer!r} on {options.device}: {'shared' if share.zero_copy else 'copied'}, {share.reason}")

    producer = np.empty(buffer.shape, np.float32)

    def by_copy(image: np.ndarray) -> np.ndarray:
        np.copyto(producer[0], image)
        with tf.device(options.device):
            return classify(tf.convert_to_tensor(producer)).numpy()

    def by_zero_copy(image: np.ndarray) -> np.ndarray:
        np.copyto(buffer.numpy()[0], image)
        return classify(buffer.tensor(options.device, mode=options.mode)).numpy()

    def by_pinned_copy(image: np.ndarray) -> np.ndarray:
        np.copyto(buffer.numpy()[0], image)
        return classify(buffer.tensor(options.device, mode="copy")).numpy()

    classifiers = {"copy": by_copy, "zero_copy": by_zero_copy}
    if buffer.backend == "cuda":
        classifiers["pinned_copy"] = by_pinned_copy
    for image in images[:3]:  # the warm-up, and the proof that all ways classify alike
        for classifier in classifiers.values():
            np.testing.assert_allclose(classifier(image), by_copy(image), rtol=1e-3, atol=1e-6)
    ways = _measure(classifiers, images, options.runs, options.energy)
    for way in ways:
        print(
            f"{way.name:>11}: {statistics.mean(way.seconds) * 1e3:.2f} ms "
            f"± {statistics.pstdev(way.seconds) * 1e3:.2f} over {len(way.seconds)} runs, "
            f"{way.bytes_copied} bytes copied each, energy {way.energy}"
        )
    return ways


def _measure(
    ways: dict[str, Callable[[np.ndarray], np.ndarray]], images: np.ndarray, runs: int, with_energy: bool
) -> list[Way]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    copied: dict[str, int] = {}
    for run in range(runs):
        for name, classify in ways.items():  # alternating, so that a slow moment of the machine hits both
            before = zero_copy.statistics().copied_bytes
            begin = time.perf_counter()
            classify(images[run % len(images)])
            seconds[name].append(time.perf_counter() - begin)
            # convert_to_tensor copies the image in any case, and is not counted by us.
            copied[name] = (
                images[0].nbytes if name == "copy" else zero_copy.statistics().copied_bytes - before
            )
    return [
        Way(name, seconds[name], copied[name], _energy(lambda name=name: ways[name](images[0]), with_energy))
        for name in ways
    ]


def _energy(run: Callable[[], object], wanted: bool) -> str:
    if not wanted:
        return "not measured (pass --energy)"
    try:
        return f"{energy.measure(run).net_mwh_per_run:.4f} mWh of all GPUs"
    except RuntimeError as error:
        return f"unavailable: {error}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    default = "GPU:0" if tf.config.list_physical_devices("GPU") else "CPU:0"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100, help="runs each way (%(default)s)")
    parser.add_argument("--size", type=int, default=224, help="height and width of an image (%(default)s)")
    parser.add_argument("--device", default=default, help="where to classify (%(default)s)")
    parser.add_argument("--mode", default="zero_copy", choices=["auto", "zero_copy"], help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and images (%(default)s)")
    parser.add_argument("--weights", help="a file by save_weights of this network")
    parser.add_argument("--energy", action="store_true", help="measure energy too: 20 s more for each way")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
