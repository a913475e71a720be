"""The data of the workloads: real digits, and made-up problems that say so.

Everything comes from a seed, so that each run of a comparison sees the same examples.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from overlap_train.models.mnist_data import load_mnist

TEACHER_FEATURES = 32
SCENE_SHAPE = (128, 191, 3)
VOCABULARY_SIZE = 5_000
SEQUENCE_LENGTH = 64
_SEED = 0


@dataclass(frozen=True)
class Examples:
    """Inputs and targets along the first axis."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Task:
    """Data of one workload, and one line that says where it comes from."""

    train: Examples
    validation: Examples
    source: str


def mnist(cache_dir: Path, train_examples: int, validation_examples: int) -> Task:
    """Digits, uint8 `[N, 28, 28, 1]`; the training images are repeated where more are asked for.

    The first call in a cache folder reads MNIST by way of `load_mnist`, later ones what that call saved.
    """
    saved = cache_dir / "mnist.npz"
    if not saved.exists():
        digits = load_mnist()
        unfinished = cache_dir / "mnist.unfinished.npz"
        np.savez(
            unfinished,
            x_train=digits.x_train,
            y_train=digits.y_train,
            x_test=digits.x_test,
            y_test=digits.y_test,
            source=np.array(digits.source),
        )
        os.replace(unfinished, saved)
    with np.load(saved) as arrays:
        x, y = arrays["x_train"], arrays["y_train"]
        x_test, y_test = arrays["x_test"][:validation_examples], arrays["y_test"][:validation_examples]
        source = str(arrays["source"])
    if train_examples > len(x):
        x, y = np.resize(x, (train_examples, *x.shape[1:])), np.resize(y, train_examples)
    return Task(Examples(x[:train_examples], y[:train_examples]), Examples(x_test, y_test), source)


def teacher(_: Path, train_examples: int, validation_examples: int) -> Task:
    """Random vectors, float32 `[N, 32]`, whose class among ten a random linear map decides."""
    generator = np.random.default_rng(_SEED)
    x = generator.standard_normal((train_examples + validation_examples, TEACHER_FEATURES), np.float32)
    y = np.argmax(x @ generator.standard_normal((TEACHER_FEATURES, 10), np.float32), axis=-1)
    return _split(x, y.astype(np.int32), train_examples, "synthetic: random vectors, classes by a linear map")


def scenes(_: Path, train_examples: int, validation_examples: int) -> Task:
    """Bright ellipses on a noisy ground, uint8 `[N, 128, 191, 3]`, and where they are, float32 0 or 1."""
    generator = np.random.default_rng(_SEED)
    height, width, _channels = SCENE_SHAPE
    count = train_examples + validation_examples
    middle = generator.uniform((0.3, 0.3), (0.7, 0.7), (count, 2)) * (height, width)
    radius = generator.uniform(0.12, 0.3, (count, 2)) * height
    rows, columns = np.mgrid[:height, :width]
    distance = ((rows - middle[:, :1, None]) / radius[:, :1, None]) ** 2
    distance = distance + ((columns - middle[:, 1:, None]) / radius[:, 1:, None]) ** 2
    inside = (distance <= 1.0)[..., None]
    x = generator.integers(0, 128, (count, *SCENE_SHAPE)) + 96 * inside
    return _split(
        x.astype(np.uint8), inside.astype(np.float32), train_examples, "synthetic: ellipses on a noisy ground"
    )


def sequences(_: Path, train_examples: int, validation_examples: int) -> Task:
    """Token ids, int32 `[N, 64]`, padded with 0, of one of two classes that favour different tokens."""
    generator = np.random.default_rng(_SEED)
    count = train_examples + validation_examples
    y = generator.integers(0, 2, count).astype(np.int32)
    # A rank that is exponential, as words are skewed, read from either end of the vocabulary.
    rank = generator.exponential(VOCABULARY_SIZE / 3, (count, SEQUENCE_LENGTH)).astype(np.int32)
    rank = np.minimum(rank, VOCABULARY_SIZE - 2)
    x = 1 + np.where(y[:, None] == 1, VOCABULARY_SIZE - 2 - rank, rank)
    lengths = generator.integers(SEQUENCE_LENGTH // 4, SEQUENCE_LENGTH + 1, (count, 1))
    x = np.where(np.arange(SEQUENCE_LENGTH) < lengths, x, 0).astype(np.int32)
    return _split(x, y, train_examples, "synthetic: tokens of two skewed distributions")


def _split(x: npt.NDArray[Any], y: npt.NDArray[Any], train_examples: int, source: str) -> Task:
    return Task(
        Examples(x[:train_examples], y[:train_examples]),
        Examples(x[train_examples:], y[train_examples:]),
        source,
    )
