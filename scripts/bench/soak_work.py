"""The work of a soak: short uses of the library, each of which begins, often fails, and has to leave nothing.

By default each makes a model and data of its own, so that all is traced anew. After `keep_models()` they
share a few. `KINDS` names the uses. Each is called with a generator of random numbers and a folder of its own
that is emptied afterwards, and raises if what it did came to something else than it should.
"""

from __future__ import annotations

import functools
import os
import random
import signal
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train import (
    CheckpointPolicy,
    EvaluationFunction,
    Trainer,
    ValidationPolicy,
    routed,
    zero_copy,
)
from overlap_train.errors import ValidationWorkerError
from overlap_train.scheduling import MultiModelScheduler

Kind = Callable[[random.Random, Path], None]
_FEATURES, _CLASSES, _ROWS = 12, 4, 64
_KEPT: deque[keras.Model] = deque()


def _arrays(seed: int, rows: int = _ROWS) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, _FEATURES)).astype("float32"), rng.integers(0, _CLASSES, rows)


def _pipeline(seed: int, rows: int = _ROWS) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(_arrays(seed, rows)).batch(16)


def keep_models() -> None:
    """Has all uses from now on share two models, and the datasets with functions that TensorFlow traces."""
    _KEPT.extend([_new_model(), _new_model()])


def _model() -> keras.Model:
    """Returns a new model, or the next of those that are kept."""
    if not _KEPT:
        return _new_model()
    _KEPT.rotate()
    return _KEPT[0]


def _new_model() -> keras.Model:
    model = keras.Sequential([keras.Input((_FEATURES,)), keras.layers.Dense(_CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def _policy(rng: random.Random, **more: Any) -> ValidationPolicy:
    return ValidationPolicy(
        workers=rng.randint(1, 5),
        max_lag=rng.randint(0, 2),
        backlog=rng.choice(["block", "latest"]),
        on_change=rng.choice(["rollback", "continue"]),
        **more,
    )


def _fit(rng: random.Random, trainer: Any, **arguments: Any) -> keras.callbacks.History:
    x, y = _arrays(rng.randint(0, 9))
    given = {"x": x, "y": y, "validation_data": _pipeline(1, 40), "epochs": 4, "verbose": 0, **arguments}
    if _KEPT and given["y"] is not None:  # for arrays Keras's adapter makes a dataset with functions
        rows = tf.data.Dataset.from_tensor_slices((given["x"], given["y"])).batch(16)
        given |= {"x": rows, "y": None}
    return trainer.fit(**given)


def _expect(
    error: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any], containing: str = ""
) -> None:
    try:
        call()
    except error as raised:
        if containing not in str(raised):
            raise
        return
    raise AssertionError(f"{error} was expected")


class _Fails(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, hook: str) -> None:
        super().__init__()
        setattr(self, hook, self._fail)

    def _fail(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("a callback of the user's failed")


class _Interrupts(keras.callbacks.Callback):  # type: ignore[misc]
    """Presses Ctrl-C once, at the end of the first epoch."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if epoch == 0:
            os.kill(os.getpid(), signal.SIGINT)


class _Indexed(keras.utils.PyDataset):  # type: ignore[misc]
    """Eight batches, by index."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return _arrays(index, 8)


def _failing(seed: int, at: int) -> tf.data.Dataset:
    """Returns a dataset that raises at batch `at`; the same again if models are kept."""
    return _kept_failing(seed, at) if _KEPT else _new_failing(seed, at)


def _new_failing(seed: int, at: int) -> tf.data.Dataset:

    def check(index: Any, batch: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_less(index, tf.constant(at, tf.int64))]):
            return tf.nest.map_structure(tf.identity, batch)

    return _pipeline(seed).enumerate().map(check)


_kept_failing = functools.cache(_new_failing)


def _mean_output(model: keras.Model) -> dict[str, float]:
    return {"mean": float(np.mean(model.predict(_arrays(2)[0], verbose=0)))}


def _fine(rng: random.Random, folder: Path) -> None:
    _fit(rng, Trainer(_model(), validation=_policy(rng)))


def _again(rng: random.Random, folder: Path) -> None:
    trainer = Trainer(_model(), validation=_policy(rng))
    for _ in range(3):
        _fit(rng, trainer, epochs=1)
        trainer.evaluate(*_arrays(3), verbose=0)


def _failing_callback(rng: random.Random, folder: Path) -> None:
    hooks = ["on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_batch_end", "on_test_end"]
    trainer = Trainer(_model(), validation=_policy(rng))
    callbacks = [_Fails(rng.choice(hooks))]
    _expect(RuntimeError, lambda: _fit(rng, trainer, callbacks=callbacks), "a callback of the user's")


def _failing_training_data(rng: random.Random, folder: Path) -> None:
    trainer, data = Trainer(_model(), validation=_policy(rng)), _failing(0, rng.randint(0, 3))
    _expect(tf.errors.InvalidArgumentError, lambda: _fit(rng, trainer, x=data, y=None))


def _failing_validation_data(rng: random.Random, folder: Path) -> None:
    data = _failing(1, rng.randint(1, 3))
    trainer = Trainer(_model(), validation=_policy(rng))
    errors = (ValidationWorkerError, tf.errors.InvalidArgumentError)  # the second is Keras's
    _expect(errors, lambda: _fit(rng, trainer, validation_data=data))


def _interrupted(rng: random.Random, folder: Path) -> None:
    trainer = Trainer(_model(), validation=_policy(rng))
    _fit(rng, trainer, callbacks=[_Interrupts()])
    assert trainer.ended in ("interrupted by SIGINT", "completed"), trainer.ended


def _stopped(rng: random.Random, folder: Path) -> None:
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=rng.random() < 0.5)
    _fit(rng, Trainer(_model(), validation=_policy(rng)), callbacks=[stop])


def _resumed(rng: random.Random, folder: Path) -> None:
    policy = CheckpointPolicy(directory=folder / "checkpoints", every_steps=rng.choice([None, 3]))
    x, y = _arrays(0)
    for epochs in (2, 4):
        callbacks = [keras.callbacks.CSVLogger(str(folder / "log.csv"), append=True)]
        history = _fit(rng, Trainer(_model()), x=x, y=y, epochs=epochs, resume=policy, callbacks=callbacks)
    assert len(history.epoch) == 4, history.epoch


def _function(rng: random.Random, folder: Path) -> None:
    policy = _policy(rng, functions={"f": EvaluationFunction(_mean_output)})
    history = _fit(rng, Trainer(_model(), validation=policy))
    assert "val_f_mean" in history.history, list(history.history)


def _routed(rng: random.Random, folder: Path) -> None:
    model = _model()
    with routed(validation=_policy(rng)):
        model.fit(_Indexed(workers=2), validation_data=_pipeline(1, 40), epochs=3, verbose=0)
        model.evaluate(_Indexed(), verbose=0)


def _generator(rng: random.Random, folder: Path) -> None:
    batches = (_arrays(seed, 8) for seed in range(40))
    trainer = Trainer(_model(), validation=_policy(rng))
    _fit(rng, trainer, x=batches, y=None, epochs=3, steps_per_epoch=8)


def _shared_memory(rng: random.Random, folder: Path) -> None:
    with zero_copy.MappedBuffer((rng.randint(1, 64), 1024), "float32") as buffer:
        for value in range(3):
            buffer.numpy()[:] = value
            mean = float(tf.reduce_mean(buffer.tensor()))
            assert mean == value, mean
    np.save(folder / "rows.npy", _arrays(0)[0])
    tensor = zero_copy.as_tensor(np.load(folder / "rows.npy", mmap_mode="r"))
    assert tensor.shape == (_ROWS, _FEATURES), tensor.shape


def _scheduled(rng: random.Random, folder: Path) -> None:
    networks = {"first": _model(), "second": _model()}
    x = _arrays(0)[0]
    with MultiModelScheduler(networks, max_batch=4) as scheduler:
        requests = [scheduler.submit(rng.choice(list(networks)), x[i : i + 1]) for i in range(12)]
        for request in requests:
            assert request.result().shape == (1, _CLASSES)


KINDS: Mapping[str, Kind] = {
    "fine": _fine,
    "again": _again,
    "failing callback": _failing_callback,
    "failing training data": _failing_training_data,
    "failing validation data": _failing_validation_data,
    "interrupted": _interrupted,
    "stopped": _stopped,
    "resumed": _resumed,
    "function": _function,
    "routed": _routed,
    "generator": _generator,
    "shared memory": _shared_memory,
    "scheduled": _scheduled,
}
TRACING = frozenset({"function", "routed", "generator", "scheduled"})
"""Kinds that trace something in each use whatever is kept: Keras for a generator's dataset, a function's
model for its `predict`, a scheduler for its parts."""
