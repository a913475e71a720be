"""Callbacks that do what those of loggers and tuners do; `installed` makes them those of a library."""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
from pathlib import Path

import keras

Callback = keras.callbacks.Callback
LOGGER = logging.getLogger(__name__)


def installed(folder):
    """Returns this module as it is when it is installed in a folder."""
    path = folder / "site-packages" / "stand_ins_library.py"
    path.parent.mkdir()
    path.write_text(Path(__file__).read_text())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
