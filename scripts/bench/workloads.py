"""What is trained in a comparison: data, network and batch size under one name.

A workload's data stays as small as its source holds it (pixels as uint8); each system turns it into what
the network reads in its own way, and that is a part of what is compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from scripts.bench import tasks
from scripts.bench.tasks import Task

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Workload:
    """One thing to train."""

    name: str
    batch_size: int
    sizes: tuple[int, int]  # training and validation examples
    quick_sizes: tuple[int, int]
    load: Callable[[Path, int, int], Task]
    network: Callable[[], keras.Model]  # uncompiled; it takes floats, or token ids
    pixel_scale: float | None = None  # what raw pixels are multiplied with
    binary: bool = False  # the outputs are one logit each instead of one for each class

    def task(self, cache_dir: Path, *, quick: bool) -> Task:
        """Returns the data at full or quick size."""
        return self.load(cache_dir, *(self.quick_sizes if quick else self.sizes))

    def model(self, *, from_raw: bool = False, **compile_options: Any) -> keras.Model:
        """Returns the network compiled; `from_raw`: it takes raw pixels and scales them itself."""
        import keras

        model = self.network()
        if from_raw and self.pixel_scale is not None:
            raw = keras.Input(model.input_shape[1:], dtype="uint8")
            model = keras.Model(raw, model(keras.layers.Rescaling(self.pixel_scale)(raw)))
        if self.binary:
            loss: Any = keras.losses.BinaryCrossentropy(from_logits=True)
            metric: Any = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
        else:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            metric = keras.metrics.SparseCategoricalAccuracy("accuracy")
        model.compile(keras.optimizers.Adam(), loss, metrics=[metric], **compile_options)
        return model

    def scaled(self, x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns raw inputs, whole or one batch, as the network reads them."""
        return x if self.pixel_scale is None else x.astype(np.float32) * np.float32(self.pixel_scale)


def _network(name: str, *arguments: Any, **options: Any) -> Callable[[], keras.Model]:
    """Returns what makes a network of `overlap_train.models`, and imports it only then."""

    def make() -> keras.Model:
        return getattr(importlib.import_module(f"overlap_train.models.{name}"), name)(*arguments, **options)

    return make


_ALL = (
    Workload(
        "mnist",
        batch_size=128,
        sizes=(60_000, 10_000),
        quick_sizes=(10_000, 2_500),
        load=tasks.mnist,
        network=_network("mnist_cnn"),
        pixel_scale=1 / 255,
    ),
    Workload(
        "mnist-1gb",
        batch_size=128,
        sizes=(2**30 // (28 * 28 * 4), 10_000),
        quick_sizes=(80_000, 2_500),
        load=tasks.mnist,
        network=_network("mnist_cnn"),
        pixel_scale=1 / 255,
    ),
    Workload(
        "mlp",
        batch_size=32,
        sizes=(80_000, 40_000),
        quick_sizes=(40_000, 20_000),
        load=tasks.teacher,
        network=_network("mlp", features=tasks.TEACHER_FEATURES),
    ),
    Workload(
        "resnet",
        batch_size=64,
        sizes=(12_800, 5_000),
        quick_sizes=(3_200, 1_250),
        load=tasks.mnist,
        network=_network("resnet"),
        pixel_scale=1 / 255,
    ),
    Workload(
        "unet",
        batch_size=4,
        sizes=(48, 16),
        quick_sizes=(8, 4),
        load=tasks.scenes,
        network=_network("unet", tasks.SCENE_SHAPE, classes=1),
        pixel_scale=1 / 255,
        binary=True,
    ),
    Workload(
        "text",
        batch_size=64,
        sizes=(12_800, 6_400),
        quick_sizes=(3_200, 1_600),
        load=tasks.sequences,
        network=_network(
            "text_lstm", vocabulary_size=tasks.VOCABULARY_SIZE, sequence_length=tasks.SEQUENCE_LENGTH
        ),
    ),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
