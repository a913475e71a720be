"""What hooks do, by their code: stand-ins for callbacks of loggers and tuners, and their doubles."""

from __future__ import annotations

import functools
import logging
import random
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tqdm.keras import TqdmCallback

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.hook_doings import doing_of
from overlap_train._callbacks.hooks import (
    acts_in_test_batches,
    is_called_late,
    may_change_training,
    ordering_hooks,
    wants_test_batches,
    wants_train_batches,
)

Callback = keras.callbacks.Callback
LOGGER = logging.getLogger(__name__)
MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
MODELS = [MODEL]
SCALE = tf.Variable(1.0)


class EveryN(Callback):
    """Logs at batches if it is asked to, as those of mlflow and wandb do."""

    def __init__(self, every_n=None):
        super().__init__()
        self.every_n = every_n
        self.lines = []

    def on_epoch_end(self, epoch, logs=None):
        logs = {f"epoch/{name}": value for name, value in (logs or {}).items()}
        logs["rate"] = float(self.model.optimizer.learning_rate.numpy())
        self.lines.append(logs)

    def on_batch_end(self, batch, logs=None):
        if self.every_n is None or logs is None:
            return
        step = int(self.model.optimizer.iterations.numpy())
        if step % self.every_n == 0:
            self.lines.append((step, logs))


class Counts(Callback):
    """Counts batches, as that of wandb does."""

    def __init__(self, every_n=0):
        super().__init__()
        self.every_n = every_n
        self.step = 0

    def on_train_batch_end(self, batch, logs=None):
        self.on_batch_end(batch, logs if logs else {})

    def on_batch_end(self, batch, logs=None):
        self.step += 1
        if self.every_n and batch % self.every_n == 0:
            print(self.model.optimizer.learning_rate)


class Tuner:
    """Gives its callback empty hooks to be overridden, as keras-tuner does."""

    def on_epoch_begin(self, trial, model, epoch, logs=None):
        """Called at the beginning of an epoch."""

    def on_batch_end(self, trial, model, batch, logs=None):
        pass


class ActingTuner(Tuner):
    def on_batch_end(self, trial, model, batch, logs=None):
        model.optimizer.learning_rate = 0.5


class TunerCallback(Callback):
    def __init__(self, tuner, trial):
        super().__init__()
        self.tuner = tuner
        self.trial = trial

    def on_epoch_begin(self, epoch, logs=None):
        self.tuner.on_epoch_begin(self.trial, self.model, epoch, logs=logs)

    def on_batch_end(self, batch, logs=None):
        self.tuner.on_batch_end(self.trial, self.model, batch, logs)


def build_base(base):
    class Base(base):
        def on_train_batch_begin(self, batch, logs=None):
            pass

        def on_test_batch_end(self, batch, logs=None):
            pass

    return Base


class Sends(build_base(Callback)):
    """Sends its logs, and histograms of the weights before the first epoch, as that of comet does."""

    def __init__(self):
        super().__init__()
        self.sent = []
        self._step = 0

    def on_epoch_begin(self, epoch, logs=None):
        try:
            LOGGER.debug("epoch %s %s", epoch, logs)
            if epoch == 0:
                self._send_weights()
        except Exception:
            LOGGER.warning("ignored", exc_info=True)

    def _send_weights(self):
        for layer in self.model.layers:
            self.sent.append(layer.get_weights())

    def on_train_batch_end(self, batch, logs=None):
        try:
            self._send(batch, logs)
        finally:
            self._step += 1

    def on_test_batch_end(self, batch, logs=None):
        with open("/dev/null", "w") as file:
            file.write(str(logs))

    def _send(self, batch, logs):
        for name, value in logs.items():
            self.sent.append((self._step, name, value))


def guarded(function):
    """Keeps errors from the training, as the metaclass of mlflow does."""

    def safe(*arguments, **named):
        try:
            return function(*arguments, **named)
        except Exception as error:
            if LOGGER.disabled:
                raise
            LOGGER.warning("ignored: %s", error)

    return functools.update_wrapper(safe, function)


class Guarded(EveryN):
    on_batch_end = guarded(EveryN.on_batch_end)
    on_epoch_end = guarded(EveryN.on_epoch_end)


class Prunes(Callback):
    """Ends a training by an exception, as that of optuna does."""

    def on_epoch_end(self, epoch, logs=None):
        if (logs or {}).get("val_loss", 0.0) > 1e6:
            raise RuntimeError(f"pruned at epoch {epoch}")


def test_who_returns_at_once_is_not_called():
    for callback in (EveryN(), Guarded(), TunerCallback(Tuner(), object())):
        assert not wants_train_batches(callback)
        assert ordering_hooks(callback) == ()
        assert not is_called_late(callback)


def test_the_settings_decide():
    assert wants_train_batches(EveryN(10))
    assert "on_batch_end" in ordering_hooks(EveryN(10))
    assert "on_batch_end" in ordering_hooks(Guarded(10))
    assert ordering_hooks(Counts()) == ()
    assert ordering_hooks(Counts(5)) != ()


def test_an_empty_hook_of_another_object_is_looked_up_in_its_class():
    assert "on_batch_end" in ordering_hooks(TunerCallback(ActingTuner(), object()))


def test_who_counts_or_logs_is_called_late():
    for callback in (Counts(), Sends()):
        assert wants_train_batches(callback)
        assert is_called_late(callback)
        assert ordering_hooks(callback) == ()
        assert ordering_hooks(callback, may_be_late=False) != ()


def test_who_looks_at_the_model_at_an_epoch_s_end_does_not_change_it():
    for callback in (EveryN(), Guarded(), Sends(), Counts(), Prunes()):
        assert not may_change_training(callback)


def test_tests_of_batches_that_only_log_are_replayed():
    assert wants_test_batches(Sends())
    assert not acts_in_test_batches(Sends())
    assert not wants_test_batches(build_base(Callback)())


def test_the_bars_of_tqdm():
    bars = TqdmCallback(verbose=1, disable=True)
    assert is_called_late(bars)
    assert not may_change_training(bars)


def test_a_setting_that_a_method_may_change_is_not_relied_upon():
    class Opens(EveryN):
        def on_train_begin(self, logs=None):
            self.every_n = 10

    class Opened(EveryN):
        def arm(self, name, value):
            setattr(self, name, value)

    assert ordering_hooks(Opens()) != ()
    assert ordering_hooks(Opened()) != ()


HOOKS = {
    "sets a variable": lambda self, batch, logs=None: self.model.optimizer.learning_rate.assign(0.1),
    "sets a global variable": lambda self, batch, logs=None: SCALE.assign(2.0),
    "reaches a model in a list": lambda self, batch, logs=None: MODELS[0].set_weights([]),
    "trains": lambda self, batch, logs=None: self.model.fit(logs),
    "draws": lambda self, batch, logs=None: random.random(),
    "seeds": lambda self, batch, logs=None: np.random.seed(batch),
    "calls a function of Keras": lambda self, batch, logs=None: keras.utils.set_random_seed(batch),
    "calls what it is given": lambda self, batch, logs=None: self.model(logs),
    "hands the model on": lambda self, batch, logs=None: LOGGER.info("%s", self.model),
    "hands itself on": lambda self, batch, logs=None: print(self),
    "maps a function": lambda self, batch, logs=None: list(map(self.act, logs)),
    "evaluates text": lambda self, batch, logs=None: eval("1"),
    "finds attributes by name": lambda self, batch, logs=None: getattr(self, str(batch))(),
    "calls a global function": lambda self, batch, logs=None: act(batch),
    "calls a wrapped function": lambda self, batch, logs=None: wrapped(batch),
    "calls a part of a function": lambda self, batch, logs=None: partial(batch),
}


def act(batch):
    MODEL.trainable = False


wrapped = functools.lru_cache(act)
partial = functools.partial(act)


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_what_may_reach_the_training_is_anything(hook):
    callback = type("Mine", (Callback,), {"on_train_batch_end": hook, "act": lambda self, name: name})()
    assert doing_of(callback, ["on_train_batch_end"]) is Doing.ANYTHING
    assert ordering_hooks(callback) == ("on_train_batch_end",)
    assert may_change_training(callback)


def test_who_looks_at_the_clock_is_called_in_time():
    class Times(Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

    assert ordering_hooks(Times()) == ("on_train_batch_begin",)
    assert not may_change_training(Times())


def test_a_loop_that_carries_the_model_to_its_next_turn_is_seen():
    class Carries(Callback):
        def on_train_batch_end(self, batch, logs=None):
            held = logs
            for _ in range(2):
                if held is not logs:
                    held.trainable = False
                held = self.model

    assert ordering_hooks(Carries()) == ("on_train_batch_end",)


def test_a_way_out_of_a_loop_is_not_lost():
    class Leaves(Callback):
        def on_train_batch_end(self, batch, logs=None):
            held = None
            for _ in range(2):
                held = self.model
                break
            held.trainable = False

    assert ordering_hooks(Leaves()) == ("on_train_batch_end",)


def test_ending_inside_an_epoch_is_not_late():
    class Ends(Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch > 3

    class Raises(Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch > 3:
                raise ValueError

    for callback in (Ends(), Raises()):
        assert ordering_hooks(callback) == ("on_train_batch_end",)
        assert not may_change_training(callback)


def test_a_lambda_is_told_from_its_neighbours():
    lambdas = keras.callbacks.LambdaCallback
    quiet = lambdas(on_train_batch_end=lambda batch, logs: None, on_epoch_end=lambda epoch, logs: act(epoch))
    assert not wants_train_batches(quiet)
    assert may_change_training(quiet)


def test_code_without_a_source_may_do_anything():
    scope = {"Callback": Callback}
    exec("class Mine(Callback):\n    def on_train_batch_end(self, batch, logs=None):\n        pass\n", scope)
    assert wants_train_batches(scope["Mine"]())


def test_an_edited_source_is_not_believed(tmp_path):
    source = "def on_train_batch_end(batch, logs=None):\n    return {}\n"
    path = tmp_path / "edited.py"
    path.write_text(source.format("logs"))
    scope = {}
    exec(compile(source.format("batch.act()"), str(path), "exec"), scope)
    callback = Callback()
    callback.on_train_batch_end = scope["on_train_batch_end"]
    assert wants_train_batches(callback)


def test_a_callback_of_keras_that_saves_at_epochs_ends_is_quiet_in_a_subclass():
    class Uploads(keras.callbacks.ModelCheckpoint):
        def on_train_batch_end(self, batch, logs=None):
            if self._should_save_on_batch(batch):
                self._save_model(epoch=self._current_epoch, batch=batch, logs=logs)

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            print(self.filepath)

    assert ordering_hooks(Uploads("m.keras")) == ()
    assert not may_change_training(Uploads("m.keras"))
    assert "on_train_batch_end" in ordering_hooks(Uploads("m.keras", save_freq=3))
