"""Fits that are to be the same on one device, on several replicas and on several hosts, or refused.

`several_target.py` runs them, `test_several.py` compares. Importing this makes no tensor: devices come later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train import ValidationPolicy
from tests.networks import (
    CLASSES,
    FEATURES,
    VALIDATION_ROWS,
    Largest,
    arrays,
    crossentropy,
    functional,
    functional_data,
    linear,
    looking_up,
    sequential,
    subclassed,
)
from tests.seeds import set_random_seed

WORDS, LENGTH = 20, 7


@dataclass(frozen=True)
class Case:
    """One fit.

    Attributes:
        build: makes the compiled model, in the strategy's scope if there is one.
        arguments: makes the arguments of `fit`, given a directory of the process's own.
        policy: makes the `ValidationPolicy`; a trainer on one device is then what is compared with, else
            Keras's `fit`.

        refused: part of the message under replicas and on hosts; None if it trains.
        refused_on_hosts: the same where only hosts refuse.
        rtol: how far numbers may differ.
        atol: the same for weights, whatever their size.
        only_weights: whether the logs are those of one replica by design, and are not compared.
        resumes: whether the trainers are given a directory to resume from.
    """

    build: Callable[[], keras.Model]
    arguments: Callable[[Path], dict[str, Any]] = field(default=lambda directory: of_arrays())
    policy: Callable[[], ValidationPolicy] | None = None

    refused: str | None = None
    refused_on_hosts: str | None = None
    rtol: float = 1e-5
    atol: float = 1e-6
    only_weights: bool = False
    resumes: bool = False

    @property
    def by_keras(self) -> bool:
        return self.policy is None


def of_arrays(rows: int = 203, **more: Any) -> dict[str, Any]:
    x, y = arrays(rows)
    return {"x": x, "y": y, "batch_size": 32, "validation_data": arrays(VALIDATION_ROWS, 1), **more}


def fitted(**more: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda directory: of_arrays(**more)


def hooked(
    make: Callable[[Path], Any], build: Callable[[], keras.Model] = sequential, epochs: int = 2, **more: Any
) -> Case:
    """Returns a fit with a callback, which is made for a directory."""
    return Case(build, lambda directory: of_arrays(callbacks=[make(directory)], epochs=epochs), **more)


def layered(*makers: Callable[[], Any], optimizer: Any = "adam") -> Callable[[], keras.Model]:
    """Returns what makes a classifier of layers between input and logits."""

    def build() -> keras.Model:
        chosen = optimizer() if callable(optimizer) else optimizer
        return linear(*makers, optimizer=chosen, metrics=["accuracy"])

    return build


def hidden(**options: Any) -> Callable[[], Any]:
    return lambda: keras.layers.Dense(16, activation="relu", **options)


def optimized(make: Callable[[], Any]) -> Callable[[], keras.Model]:
    return layered(hidden(), optimizer=make)


def of_words(*layers: Callable[[], Any]) -> Callable[[], keras.Model]:
    """Returns what makes a model of masked sequences of words."""

    def build() -> keras.Model:
        set_random_seed(5)
        embedding = keras.layers.Embedding(WORDS, 6, mask_zero=True)
        found = [make() for make in layers]
        model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), embedding, *found])
        model.compile("adam", crossentropy(), metrics=["accuracy"])
        return model

    return build


def words(each: bool) -> Callable[[Path], dict[str, Any]]:
    rng = np.random.default_rng(0)
    x = rng.integers(0, WORDS, (75, LENGTH))
    y = rng.integers(0, CLASSES, (75, LENGTH) if each else 75)
    return lambda directory: {"x": x, "y": y, "batch_size": 20, "validation_data": (x[:31], y[:31])}


def compiled(kind: type[keras.Sequential] = keras.Sequential, **options: Any) -> Callable[[], keras.Model]:
    """Returns what makes a network with steps, a loss, metrics or settings of its own."""

    def build() -> keras.Model:
        set_random_seed(7)
        model = kind([keras.Input((FEATURES,)), hidden()(), keras.layers.Dense(CLASSES)])
        made = {key: value() if key == "optimizer" else value for key, value in options.items()}
        model.compile(**{"optimizer": "adam", "loss": crossentropy(), "metrics": ["accuracy"], **made})
        return model

    return build


def under(policy: str, build: Callable[[], keras.Model]) -> Callable[[], keras.Model]:
    """Returns what makes a model under a global dtype policy."""

    def made() -> keras.Model:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            return build()
        finally:
            keras.config.set_dtype_policy(before)

    return made


class OwnLoss(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean((keras.ops.max(y_pred, axis=1) - keras.ops.cast(y, "float32")) ** 2)


class CallingAgain(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        again = self(x, training=training)
        return super().compute_loss(x, y, y_pred, sample_weight, training) + keras.ops.mean(
            (again - y_pred) ** 2
        )


def again() -> keras.Model:
    set_random_seed(7)
    model = CallingAgain([keras.Input((FEATURES,)), hidden(activity_regularizer="l2")()])
    model.add(keras.layers.Dropout(0.5, seed=1))
    model.add(keras.layers.Dense(CLASSES))
    model.compile(SGD(0.1), crossentropy(), metrics=["accuracy"])
    return model


class Complex(keras.Model):
    def __init__(self):
        super().__init__()
        self.real, self.imaginary = keras.layers.Dense(4), keras.layers.Dense(4)

    def call(self, x):
        return tf.complex(self.real(x), self.imaginary(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(tf.abs(y_pred - tf.complex(x[:, :4], x[:, 4:8])) ** 2)


def imaginary() -> keras.Model:
    set_random_seed(7)
    model = Complex()
    model.compile("sgd")
    return model


class Moving(keras.metrics.Metric):
    """Begins at -1, and is then a moving average."""

    def __init__(self, name: str, **how: Any):
        super().__init__(name=name)
        self.value = self.add_variable((), keras.initializers.Constant(-1), name="value", **how)

    def reset_state(self):
        self.value.assign(-1)

    def update_state(self, y_true, y_pred, sample_weight=None):
        new = keras.ops.mean(y_pred**2)
        self.value.assign(keras.ops.where(self.value < 0, new, 0.9 * self.value + 0.1 * new))

    def result(self):
        return self.value + 0.0


def moving() -> keras.Model:
    model = compiled()()
    metrics = [Moving("sum"), Moving("mean", aggregation="mean")]
    model.compile("adam", crossentropy(), metrics=metrics)
    return model


class Measuring(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")

    def call(self, x):
        self.size.update_state(keras.ops.mean(x**2, axis=1))
        return x


class Folded(keras.layers.Layer):
    """Drops where rows and features are folded into one axis."""

    def __init__(self):
        super().__init__()
        self.drop = keras.layers.Dropout(0.5, seed=1)

    def call(self, x, training=False):
        dropped = self.drop(keras.ops.reshape(x, (-1, 4)), training=training)
        return keras.ops.reshape(dropped, (-1, x.shape[1]))


class OwnTrainStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return {"loss": loss}


class OwnTestStep(keras.Sequential):
    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        self.compute_loss(x, y, y_pred)
        return self.compute_metrics(x, y, y_pred)


class Penalised(keras.layers.Layer):
    def call(self, x):
        self.add_loss(1e-2 * keras.ops.mean(x**2))
        return x


class Counting(keras.layers.Layer):
    """Counts its calls in training."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.calls.assign_add(1.0)
        return x


class Noting(keras.callbacks.Callback):
    """Notes the logs of each batch."""

    def __init__(self, directory: Path):
        super().__init__()
        self.file = directory / "batches.txt"

    def on_train_batch_end(self, batch, logs=None):
        with self.file.open("a") as file:
            file.write(f"{batch} {logs['loss']:.4f}\n")


class Validating(keras.callbacks.Callback):
    """Listens to the batches of validations."""

    def on_test_batch_end(self, batch, logs=None):
        self.last = batch


def frozen() -> keras.layers.Layer:
    return keras.layers.BatchNormalization(trainable=False)


def dataset(batch: int = 32, rows: int = 203, **options: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).batch(batch, **options)


def from_data(make: Callable[[], Any], **more: Any) -> Callable[[Path], dict[str, Any]]:
    more = {"validation_data": arrays(VALIDATION_ROWS, 1), "shuffle": False, **more}
    return lambda directory: {"x": make(), **more}


class Rows(keras.utils.PyDataset):
    """Batches of rows, which do not say how many each has."""

    def __init__(self, data, size: int = 32):
        super().__init__()
        self.data, self.size = data, size

    def __len__(self):
        return -(-len(self.data[0]) // self.size)

    def __getitem__(self, index):
        return tuple(part[index * self.size : (index + 1) * self.size] for part in self.data)


def batches(rows: int = 203, seed: int = 0) -> Rows:
    return Rows(arrays(rows, seed))


def endless():
    x, y = arrays()
    while True:
        for begin in range(0, len(x), 32):
            yield x[begin : begin + 32], y[begin : begin + 32]


def attending() -> keras.Model:
    set_random_seed(7)
    inputs = keras.Input((FEATURES,))
    found = keras.layers.Reshape((4, 3))(inputs)
    found = keras.layers.MultiHeadAttention(2, 4)(found, found)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.Flatten()(found)))
    # The gradient of a bias of the keys is zero but for rounding, of which Adam would make a step.
    model.compile(SGD(0.1), crossentropy(), metrics=["accuracy"])
    return model


def binary() -> keras.Model:
    set_random_seed(1)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), Largest()])
    return model


def of_binary(directory: Path) -> dict[str, Any]:
    x, y = arrays()
    return {"x": x, "y": (y % 2)[:, None].astype("float32"), "batch_size": 32, "validation_split": 0.2}


def of_two(directory: Path) -> dict[str, Any]:
    x, y = functional_data()
    return {"x": x, "y": y, "batch_size": 32, "validation_data": functional_data(VALIDATION_ROWS, 1)}


def of_two_weighted(directory: Path) -> dict[str, Any]:
    weights = np.linspace(0.5, 1.5, 203).astype("float32")
    return {**of_two(directory), "sample_weight": {"label": weights, "size": weights[::-1].copy()}}


def without_targets() -> keras.Model:
    set_random_seed(7)
    model = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(3), Penalised()])
    model.compile("adam")
    return model


def norm(model: keras.Model) -> float:
    return float(np.linalg.norm(model.get_weights()[0]))


def two_sets(directory: Path) -> dict[str, Any]:
    return of_arrays(validation_data={"near": arrays(91, 1), "far": arrays(50, 2)})


def rate() -> keras.optimizers.Optimizer:
    return SGD(0.1)


EMA = {"use_ema": True, "ema_momentum": 0.9}
SGD = keras.optimizers.SGD
WEIGHTS = np.linspace(0.5, 1.5, 203).astype("float32")
KC = keras.callbacks
averaged = optimized(lambda: SGD(0.1, **EMA))

LAYERS = {
    "dropout with a seed": Case(sequential),
    "embedding": Case(looking_up),
    "embedding that masks": Case(lambda: looking_up(mask_zero=True)),
    "masked words, each with a target": Case(
        of_words(lambda: keras.layers.SimpleRNN(5, return_sequences=True), lambda: keras.layers.Dense(4)),
        words(each=True),
    ),
    "masked words in an LSTM": Case(
        of_words(lambda: keras.layers.LSTM(5), lambda: keras.layers.Dense(4)), words(each=False)
    ),
    "convolutions": Case(
        layered(
            lambda: keras.layers.Reshape((4, 3)),
            lambda: keras.layers.Conv1D(8, 2, activation="relu"),
            lambda: keras.layers.GlobalMaxPooling1D(),
        )
    ),
    "attention": Case(attending),
    "layer normalization, dropout, add_loss, a regulariser": Case(
        lambda: subclassed("adam", keras.layers.LayerNormalization)
    ),
    "synchronized batch normalization": Case(
        layered(hidden(), lambda: keras.layers.BatchNormalization(synchronized=True)), rtol=1e-4
    ),
    "frozen batch normalization": Case(layered(hidden(), frozen)),
    "activity regulariser": Case(layered(hidden(activity_regularizer="l2"))),
    "layer that counts its calls": Case(layered(hidden(), Counting)),
    "layer with a metric": Case(layered(hidden(), Measuring)),
    "dropout over folded rows": Case(layered(hidden(), Folded)),
    "several outputs": Case(functional, of_two),
    "several outputs with weights each": Case(functional, of_two_weighted),
    "complex outputs": Case(imaginary, refused_on_hosts="not in list of allowed values"),
    "no targets": Case(without_targets, lambda directory: {"x": arrays()[0], "batch_size": 32}),
}
NUMBERS = {
    "mixed_float16": Case(
        under("mixed_float16", compiled(optimizer=rate, metrics=None)), rtol=2e-3, atol=1e-4
    ),
    "mixed_bfloat16": Case(
        under("mixed_bfloat16", compiled(optimizer=rate, metrics=None)), rtol=2e-2, atol=1e-3
    ),
    "SGD with Nesterov's momentum": Case(optimized(lambda: SGD(0.05, momentum=0.9, nesterov=True))),
    "AdamW with global_clipnorm": Case(optimized(lambda: keras.optimizers.AdamW(global_clipnorm=0.1))),
    "loss scaling": Case(optimized(lambda: keras.optimizers.LossScaleOptimizer(SGD(0.1)))),
    "use_ema": Case(averaged),
    "use_ema, overwritten by steps": Case(
        optimized(lambda: SGD(0.1, **EMA, ema_overwrite_frequency=3)),
        refused="ema_overwrite_frequency does not work under tf.distribute",
    ),
    "gradient_accumulation_steps": Case(
        optimized(lambda: SGD(0.1, gradient_accumulation_steps=2)),
        refused="gradient_accumulation_steps does not work under tf.distribute",
    ),
    "sum of losses": Case(
        compiled(
            optimizer=lambda: SGD(1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
        )
    ),
    "AUC and a metric that is no sum": Case(binary, of_binary),
    "metrics that begin at -1": Case(moving),
    "weighted metrics": Case(compiled(weighted_metrics=["accuracy"]), fitted(sample_weight=WEIGHTS)),
    "compute_loss": Case(compiled(OwnLoss)),
    "compute_loss that calls the model again": Case(again),
    "train_step": Case(
        compiled(OwnTrainStep, metrics=None),
        lambda directory: of_arrays(192, validation_data=None),
        only_weights=True,
    ),
    "test_step": Case(compiled(OwnTestStep), refused_on_hosts="that is for one host"),
    "jit_compile": Case(compiled(jit_compile=True), refused="jit_compile"),
    "run_eagerly": Case(compiled(run_eagerly=True), refused_on_hosts="that is for one host"),
    "steps_per_execution": Case(compiled(steps_per_execution=3)),
}
DATA = {
    "last batch smaller than the replicas are many": Case(sequential, fitted(rows=33)),
    "batches smaller than the replicas are many": Case(
        sequential, fitted(batch_size=1), refused="replicas are to share each batch"
    ),
    "dataset": Case(sequential, from_data(dataset)),
    "endless dataset": Case(sequential, from_data(lambda: dataset().repeat(), steps_per_epoch=5)),
    "PyDataset": Case(sequential, from_data(batches)),
    "validation on a PyDataset": Case(sequential, from_data(batches, validation_data=batches(91, 1))),
    "generator": Case(sequential, from_data(endless, steps_per_epoch=6)),
    "sparse gradients of uneven batches": Case(looking_up, from_data(lambda: dataset(13))),
    "class weights": Case(sequential, fitted(class_weight={0: 0.2, 1: 1.0, 2: 3.0, 3: 1.5})),
    "sample weights": Case(sequential, fitted(sample_weight=WEIGHTS)),
    "validation_split": Case(sequential, fitted(validation_data=None, validation_split=0.3)),
    "validation_steps": Case(
        sequential,
        lambda directory: of_arrays(validation_data=dataset(10, 91).repeat(), validation_steps=4),
    ),
    "validation_freq": Case(sequential, fitted(validation_freq=2, epochs=4)),
    "several validation sets": Case(sequential, two_sets, policy=ValidationPolicy),
    "resume with arrays": Case(sequential, resumes=True),
    "resume with a PyDataset": Case(sequential, from_data(batches), resumes=True),
    "resume with a generator": Case(sequential, from_data(endless, steps_per_epoch=6), resumes=True),
}
HOOKS = {
    "EarlyStopping": hooked(
        lambda path: KC.EarlyStopping(min_delta=0.1, restore_best_weights=True), epochs=6
    ),
    "ReduceLROnPlateau": hooked(lambda path: KC.ReduceLROnPlateau(patience=1, min_delta=0.2), epochs=5),
    "LearningRateScheduler": hooked(lambda path: KC.LearningRateScheduler(lambda epoch, lr: lr * 0.7)),
    "ModelCheckpoint": hooked(
        lambda path: KC.ModelCheckpoint(path / "{epoch}.weights.h5", save_weights_only=True)
    ),
    "ModelCheckpoint by batches": hooked(
        lambda path: KC.ModelCheckpoint(path / "{epoch}.weights.h5", save_weights_only=True, save_freq=3)
    ),
    "hooks of batches": hooked(Noting),
    "hooks of validation batches": hooked(lambda path: Validating()),
    "TensorBoard by batches": hooked(
        lambda path: KC.TensorBoard(path / "board", update_freq="batch"),
        refused_on_hosts="acts inside the validation",
    ),
    "SwapEMAWeights": hooked(lambda path: KC.SwapEMAWeights(swap_on_epoch=True), averaged),
    "SwapEMAWeights for validations": hooked(lambda path: KC.SwapEMAWeights(), averaged),
    "max_lag=0": Case(sequential, policy=lambda: ValidationPolicy(max_lag=0)),
    "every_steps": Case(sequential, policy=lambda: ValidationPolicy(every_steps=3)),
    "evaluation functions": Case(sequential, policy=lambda: ValidationPolicy(functions={"norm": norm})),
}
CASES = {**LAYERS, **NUMBERS, **DATA, **HOOKS}
PARTS = {"layers": LAYERS, "numbers": NUMBERS, "data": DATA, "hooks": HOOKS}
