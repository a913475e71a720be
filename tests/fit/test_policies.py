"""Contracts C6 and C7, and the schedules that Keras lacks: back-pressure, errors, interrupts, named sets."""

from __future__ import annotations

import os
import signal
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy, ValidationSet
from overlap_train._snapshot import Snapshot
from overlap_train.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ValidationTimeoutError,
    ValidationWorkerError,
)
from tests.networks import arrays, assert_same_history, sequential

VALIDATION = arrays(40, 1)


class Gate:
    """Holds the validation of chosen epochs until it is opened, through a py_function in the data."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()

    def dataset(self) -> tf.data.Dataset:
        def hold(x, y):
            self.entered.set()
            assert self.open.wait(60)
            return x, y

        data = tf.data.Dataset.from_tensor_slices(VALIDATION).batch(20)
        spec = data.element_spec

        def held(x, y):
            x2, y2 = tf.py_function(hold, (x, y), [spec[0].dtype, spec[1].dtype])
            return tf.ensure_shape(x2, spec[0].shape), tf.ensure_shape(y2, spec[1].shape)

        return data.map(held)


class OpenAt(keras.callbacks.Callback):
    """Opens a gate when an epoch begins."""

    def __init__(self, gate: Gate, epoch: int) -> None:
        super().__init__()
        self.gate, self.epoch = gate, epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            assert self.gate.entered.wait(60)
        if epoch == self.epoch:
            self.gate.open.set()


@pytest.mark.parametrize(
    ("backlog", "validated"), [("skip", [0, 5]), ("latest", [0, 4, 5])], ids=["skip", "latest"]
)
def test_a_backlog_leaves_epochs_out_and_never_repeats_a_value(backlog, validated, monkeypatch):
    live, most = weakref.WeakSet(), 0
    created = Snapshot.__init__

    def tracked(self, *args, **kwargs):
        nonlocal most
        created(self, *args, **kwargs)
        live.add(self)
        most = max(most, len(live))

    monkeypatch.setattr(Snapshot, "__init__", tracked)
    gate = Gate()
    policy = ValidationPolicy(workers=1, max_lag=1, backlog=backlog, on_change="continue")
    trainer = Trainer(sequential(), validation=policy)
    history = trainer.fit(
        *arrays(), epochs=6, validation_data=gate.dataset(), callbacks=[OpenAt(gate, 5)], verbose=0
    )
    assert history.epoch == list(range(6))
    assert len(history.history["loss"]) == 6
    assert len(history.history["val_loss"]) == len(validated)
    assert len(set(history.history["val_loss"])) == len(validated)
    assert [a.epoch for a in trainer.accounts if not a.skipped] == validated
    assert most <= policy.max_snapshots
    del history
    assert not live


def test_block_keeps_no_more_snapshots_than_it_says(monkeypatch):
    live, most = weakref.WeakSet(), 0
    created = Snapshot.__init__

    def tracked(self, *args, **kwargs):
        nonlocal most
        created(self, *args, **kwargs)
        live.add(self)
        most = max(most, len(live))

    monkeypatch.setattr(Snapshot, "__init__", tracked)
    for max_lag in (0, 1, 2):
        most = 0
        policy = ValidationPolicy(max_lag=max_lag)
        Trainer(sequential(), validation=policy).fit(
            *arrays(), epochs=5, validation_data=VALIDATION, verbose=0
        )
        assert 1 <= most <= policy.max_snapshots == max_lag + 1
        assert not live


def test_a_validation_that_takes_too_long_ends_the_fit():
    gate = Gate()
    trainer = Trainer(sequential(), validation=ValidationPolicy(timeout_s=0.2, on_change="continue"))
    timer = threading.Timer(3, gate.open.set)  # only so that no thread is left behind
    timer.start()
    with pytest.raises(ValidationTimeoutError, match=r"epoch 1 .*timeout_s=0.2"):
        trainer.fit(*arrays(), epochs=3, validation_data=gate.dataset(), verbose=0)
    assert trainer.ended == "failed"
    timer.join()


def failing(times: int) -> tf.data.Dataset:
    """A validation set whose first `times` passes fail at the second batch."""
    passes = [0]

    def batches():
        passes[0] += 1
        yield VALIDATION[0][:20], VALIDATION[1][:20]
        if passes[0] <= times:
            raise OSError("the disk went away")
        yield VALIDATION[0][20:], VALIDATION[1][20:]

    return tf.data.Dataset.from_generator(
        batches,
        output_signature=(tf.TensorSpec([20, 12], tf.float32), tf.TensorSpec([20], tf.int64)),
    )


def test_an_error_is_raised_with_epoch_and_shard():
    with pytest.raises(ValidationWorkerError, match="disk went away") as info:
        Trainer(sequential()).fit(*arrays(), epochs=3, validation_data=failing(99), verbose=0)
    assert info.value.epoch == 0
    assert info.value.__cause__ is not None


def test_warn_leaves_the_epoch_without_its_validation():
    trainer = Trainer(sequential(), validation=ValidationPolicy(on_error="warn"))
    with pytest.warns(RuntimeWarning, match="left out: validating epoch 1 failed"):
        history = trainer.fit(*arrays(), epochs=3, validation_data=failing(1), verbose=0)
    assert len(history.history["val_loss"]) == 2
    assert [account.skipped for account in trainer.accounts] == [True, False, False]


def test_retry_evaluates_the_same_snapshot_once_more():
    policy = ValidationPolicy(on_error="retry")
    expected = Trainer(sequential()).fit(*arrays(), epochs=2, validation_data=failing(0), verbose=0)
    actual = Trainer(sequential(), validation=policy).fit(
        *arrays(), epochs=2, validation_data=failing(1), verbose=0
    )
    assert_same_history(actual.history, expected.history)
    with pytest.raises(ValidationWorkerError):
        Trainer(sequential(), validation=policy).fit(
            *arrays(), epochs=2, validation_data=failing(99), verbose=0
        )


class Signal(keras.callbacks.Callback):
    """Sends signals to this process at the end of an epoch."""

    def __init__(self, epoch: int, *signals: signal.Signals) -> None:
        super().__init__()
        self.epoch, self.signals = epoch, signals

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.fixture
def handlers():
    """Python's own handlers, also where the tests run in the background and Ctrl-C is ignored."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_returns_the_partial_history(number, handlers):
    before = signal.getsignal(number)
    trainer = Trainer(sequential())
    history = trainer.fit(
        *arrays(), epochs=50, validation_data=VALIDATION, callbacks=[Signal(1, number)], verbose=0
    )
    assert trainer.ended == history.ended == f"interrupted by {number.name}"
    assert history.epoch[:2] == [0, 1]
    assert 2 <= len(history.epoch) < 50
    assert len(history.history["val_loss"]) == len(history.epoch)
    assert signal.getsignal(number) is before


def test_a_second_signal_ends_at_once(handlers):
    trainer = Trainer(sequential())
    with pytest.raises(KeyboardInterrupt, match="SIGINT, then SIGINT"):
        trainer.fit(
            *arrays(),
            epochs=50,
            validation_data=VALIDATION,
            callbacks=[Signal(0, signal.SIGINT, signal.SIGINT)],
            verbose=0,
        )
    assert trainer.ended == "failed"


def test_several_validation_sets_by_name():
    x, y = VALIDATION
    noisy = tf.data.Dataset.from_tensor_slices((x + 1.0, y)).batch(7)
    sets = {"clean": VALIDATION, "noisy": ValidationSet(data=noisy, freq=2, steps=3)}
    model = sequential()
    history = Trainer(model).fit(*arrays(), epochs=4, validation_data=sets, verbose=0).history
    assert len(history["val_clean_loss"]) == 4
    assert len(history["val_noisy_loss"]) == 2
    expected = model.evaluate(noisy.take(3), verbose=0, return_dict=True)
    assert history["val_noisy_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    assert history["val_clean_accuracy"][-1] == pytest.approx(model.evaluate(*VALIDATION, verbose=0)[1])


def test_validation_inside_epochs():
    trainer = Trainer(sequential(), validation=ValidationPolicy(every_steps=4))
    trainer.fit(*arrays(), batch_size=20, epochs=2, shuffle=False, validation_data=VALIDATION, verbose=0)
    assert [(v.epoch, v.step) for v in trainer.step_validations] == [
        (0, 4),
        (0, 8),
        (1, 12),
        (1, 16),
        (1, 20),
    ]
    model = sequential()
    model.fit(*arrays(), batch_size=20, steps_per_epoch=8, shuffle=False, verbose=0)
    expected = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert trainer.step_validations[1].metrics["val_loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_a_sanity_check_finds_an_error_before_an_epoch_is_trained():
    model = sequential()
    wrong = (np.zeros((40, 12), "f"), np.full(40, 99))
    trainer = Trainer(model, validation=ValidationPolicy(sanity_check=True))
    with pytest.raises(tf.errors.InvalidArgumentError):
        trainer.fit(*arrays(), validation_data=wrong, verbose=0)
    assert int(model.optimizer.iterations) == 0


def unbroken_and_resumed(tmp_path, break_at, **arguments):
    """Fits once in one go, and once with a break; returns both histories and models."""

    def callbacks():
        return [
            keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=0, min_delta=0.1),
        ]

    arguments = dict(validation_data=VALIDATION, batch_size=16, verbose=0) | arguments
    whole = sequential()
    expected = Trainer(whole).fit(*arrays(), epochs=6, callbacks=callbacks(), **arguments)
    Trainer(sequential()).fit(*arrays(), epochs=break_at, callbacks=callbacks(), resume=tmp_path, **arguments)
    model = sequential()
    actual = Trainer(model).fit(*arrays(), epochs=6, callbacks=callbacks(), resume=tmp_path, **arguments)
    return (model, actual), (whole, expected)


def test_a_resumed_fit_has_the_result_of_the_unbroken_one(tmp_path):
    (model, actual), (whole, expected) = unbroken_and_resumed(tmp_path, 3)
    assert actual.epoch == expected.epoch
    assert_same_history(actual.history, expected.history)
    for a, b in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_finished_fit_is_not_trained_again(tmp_path):
    (model, _), _ = unbroken_and_resumed(tmp_path, 6)
    assert int(model.optimizer.iterations) == 6 * 13


def test_a_checkpoint_of_another_model_or_data_is_refused(tmp_path):
    Trainer(sequential()).fit(*arrays(), epochs=1, resume=tmp_path, verbose=0)
    with pytest.raises(CheckpointMismatchError, match="data"):
        Trainer(sequential()).fit(*arrays(seed=5), epochs=2, resume=tmp_path, verbose=0)
    with pytest.raises(CheckpointMismatchError, match="optimizer"):
        Trainer(sequential("sgd")).fit(*arrays(), epochs=2, resume=tmp_path, verbose=0)


def test_damaged_checkpoints_are_passed_over_and_all_damaged_is_an_error(tmp_path):
    Trainer(sequential()).fit(*arrays(), epochs=3, resume=tmp_path, verbose=0)
    *older, newest = sorted(tmp_path.glob("ckpt-*"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=newest.name):
        history = Trainer(sequential()).fit(*arrays(), epochs=4, resume=tmp_path, verbose=0)
    assert history.epoch == [0, 1, 2, 3]
    for path in tmp_path.glob("ckpt-*"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointCorruptError):
        Trainer(sequential()).fit(*arrays(), epochs=5, resume=tmp_path, verbose=0)
    assert older


def test_resuming_works_beside_backup_and_restore(tmp_path):
    def fit(epochs, directory):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
        return Trainer(sequential()).fit(
            *arrays(),
            epochs=epochs,
            validation_data=VALIDATION,
            callbacks=[backup],
            resume=directory,
            verbose=0,
        )

    expected = Trainer(sequential()).fit(*arrays(), epochs=4, validation_data=VALIDATION, verbose=0)
    fit(2, tmp_path / "checkpoints")
    assert_same_history(fit(4, tmp_path / "checkpoints").history, expected.history)


BAD = [
    (ValidationPolicy, dict(workers=0), ValueError, "workers must be at least 1; got 0"),
    (ValidationPolicy, dict(workers=1.5), TypeError, "workers must be an int"),
    (ValidationPolicy, dict(max_lag=-1), ValueError, "max_lag must be at least 0; got -1"),
    (ValidationPolicy, dict(max_lag=True), TypeError, "max_lag must be an int"),
    (ValidationPolicy, dict(overlap="never"), ValueError, "overlap must be one of 'auto', 'always'"),
    (ValidationPolicy, dict(backlog="drop"), ValueError, "backlog must be one of 'block', 'skip', 'latest'"),
    (ValidationPolicy, dict(on_change="undo"), ValueError, "on_change must be one of 'rollback', 'continue'"),
    (
        ValidationPolicy,
        dict(on_error="ignore"),
        ValueError,
        "on_error must be one of 'raise', 'warn', 'retry'",
    ),
    (ValidationPolicy, dict(timeout_s=0), ValueError, "timeout_s must be positive"),
    (ValidationPolicy, dict(timeout_s="1"), TypeError, "timeout_s must be a number of seconds"),
    (ValidationPolicy, dict(every_steps=0), ValueError, "every_steps must be at least 1"),
    (ValidationPolicy, dict(sanity_check=2), TypeError, "sanity_check must be True or False"),
    (ValidationPolicy, dict(cache_bytes=-1), ValueError, "cache_bytes must be at least 0"),
    (ValidationSet, dict(data=VALIDATION, freq=0), ValueError, "freq must be at least 1; got 0"),
    (ValidationSet, dict(data=VALIDATION, freq=[1, 0]), ValueError, "freq must be at least 1; got 0"),
    (ValidationSet, dict(data=VALIDATION, steps=0), ValueError, "steps must be at least 1; got 0"),
    (ValidationSet, dict(data=VALIDATION, steps=2.5), TypeError, "steps must be an integer or None; got 2.5"),
    (
        ValidationSet,
        dict(data=VALIDATION, batch_size=-4),
        ValueError,
        "batch_size must be at least 1; got -4",
    ),
    (ValidationSet, dict(data=VALIDATION, batch_size=10**30), ValueError, "batch_size must be at most"),
    (ValidationSet, dict(data="x"), TypeError, "data must be a tuple of arrays"),
    (CheckpointPolicy, dict(directory=3), TypeError, "directory must be a path"),
    (CheckpointPolicy, dict(directory="d", every_epochs=0), ValueError, "every_epochs must be at least 1"),
    (CheckpointPolicy, dict(directory="d", every_steps=0), ValueError, "every_steps must be at least 1"),
    (CheckpointPolicy, dict(directory="d", every_steps="5"), TypeError, "every_steps must be an integer or"),
    (CheckpointPolicy, dict(directory="d", keep=1.0), TypeError, "keep must be an int"),
    (CheckpointPolicy, dict(directory="d", every_s=-1), ValueError, "every_s must be at least 0"),
]


@pytest.mark.parametrize(("kind", "arguments", "error", "message"), BAD)
def test_bad_values_of_policies(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(resume=3), TypeError, "resume must be a directory, a CheckpointPolicy or None; got int"),
        (dict(validation_data={}), ValueError, "validation_data is an empty dict"),
        (dict(validation_data={3: VALIDATION}), TypeError, "names of validation sets must be strings"),
        (dict(validation_data={"": VALIDATION}), ValueError, "must not be empty"),
        (dict(validation_data={"a": None}), TypeError, r"validation_data\['a'\] is None"),
        (dict(validation_data={"a": VALIDATION, "b": None}), TypeError, r"validation_data\['b'\] is None"),
        (
            dict(validation_data={"a": ValidationSet(data=None)}),
            TypeError,
            r"validation_data\['a'\] is None",
        ),
    ],
)
def test_bad_values_of_fit(arguments, error, message):
    with pytest.raises(error, match=message):
        Trainer(sequential()).fit(*arrays(), verbose=0, **arguments)


def test_resume_refuses_data_that_cannot_be_found_again(tmp_path):
    def batches():
        while True:
            yield arrays(16)

    with pytest.raises(ValueError, match="resume needs data whose position can be found again"):
        Trainer(sequential()).fit(batches(), steps_per_epoch=2, resume=tmp_path, verbose=0)
