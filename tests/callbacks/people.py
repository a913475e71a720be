"""Callbacks as people write them, with whether a training may run ahead of its validation beside them."""

from __future__ import annotations

import collections
import csv
import datetime
import json
import logging
import random
import sys
import time
import types
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

Callback = keras.callbacks.Callback
LOGGER = logging.getLogger("people")
EVERY = 2
LOSSES: list[float] = []
COUNTS = types.SimpleNamespace(batches=0)


def batch_output(batch, logs):
    print("Finished batch: " + str(batch))
    print(logs)


class Ahead:
    """Those that let the training run ahead: classes, and what makes one that is given a folder."""

    # What keeps what it is given.

    class LossHistory(Callback):
        def on_train_begin(self, logs=None):
            self.losses = []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(logs.get("loss"))

    class OldLossHistory(Callback):
        def on_train_begin(self, logs={}):  # noqa: B006
            self.losses = {"batch": [], "epoch": []}
            self.accuracy = {"batch": [], "epoch": []}

        def on_batch_end(self, batch, logs={}):  # noqa: B006
            self.losses["batch"].append(logs.get("loss"))
            self.accuracy["batch"].append(logs.get("accuracy"))

        def on_epoch_end(self, batch, logs={}):  # noqa: B006
            self.losses["epoch"].append(logs.get("val_loss"))

    class Window(Callback):
        def __init__(self, size=3):
            super().__init__()
            self.recent = collections.deque(maxlen=size)
            self.means = []

        def on_train_batch_end(self, batch, logs=None):
            logs = logs or {}
            self.recent.append(float(logs["loss"]))
            self.means.append(float(np.mean(self.recent)))

    class ByName(Callback):
        def __init__(self):
            super().__init__()
            self.batches = collections.defaultdict(list)

        def on_train_batch_end(self, batch, logs=None):
            for name, value in (logs or {}).items():
                if name in ("batch", "size"):
                    continue
                self.batches[name].append(value)

    class Counter(Callback):
        seen = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.seen += 1

        def on_train_batch_end(self, batch, logs=None):
            return

        def on_epoch_end(self, epoch, logs=None):
            logs["batches"] = self.seen

    class Helped(Callback):
        """Calls methods of its own, as one for training and validation."""

        def __init__(self):
            super().__init__()
            self.lines = []

        def _note(self, when, number, logs):
            self.lines.append(self._line(when, number, logs or {}))

        @staticmethod
        def _line(when, number, logs):
            return f"{when} {number}: " + ", ".join(f"{k}={v:.4f}" for k, v in logs.items())

        def on_train_batch_end(self, batch, logs=None):
            self._note("train", batch, logs)

        def on_test_batch_end(self, batch, logs=None):
            self._note("test", batch, logs)

    class HasAProperty(Callback):
        def __init__(self):
            super().__init__()
            self.sum, self.count = 0.0, 0

        @property
        def mean(self):
            return self.sum / max(self.count, 1)

        def on_train_batch_end(self, batch, logs=None):
            self.sum += logs["loss"]
            self.count += 1
            print(f"{self.mean:.3f}")

    class ArrayOfTheClass(Callback):
        losses = np.array([])

        def on_train_batch_end(self, batch, logs=None):
            self.losses = np.append(self.losses, logs["loss"])

    # What prints.

    class PrintsEvery(Callback):
        def __init__(self, every=2):
            super().__init__()
            self.every = every

        def on_train_batch_end(self, batch, logs=None):
            if self.every and batch % self.every == 0:
                print(f"Batch {batch}: loss {logs['loss']:.4f}")

    class PrintsAll(Callback):
        def on_epoch_begin(self, epoch, logs=None):
            print("Start epoch {} of training; got log keys: {}".format(epoch, list(logs.keys())))  # noqa: UP032

        def on_train_batch_begin(self, batch, logs=None):
            print("...Training: start of batch %d; got log keys: %s" % (batch, list(logs.keys())))  # noqa: UP031

        def on_train_batch_end(self, batch, logs=None):
            print("For batch {}, loss is {:7.2f}.".format(batch, logs["loss"]))

        def on_test_batch_begin(self, batch, logs=None):
            print(f"...Evaluating: start of batch {batch}")

        def on_test_batch_end(self, batch, logs=None):
            print("...Evaluating: end of batch", batch, sorted(logs), sep=" ", end="\n", flush=True)

    class Dots(Callback):
        def on_train_batch_end(self, batch, logs=None):
            if (batch + 1) % EVERY == 0:
                sys.stdout.write(".")
                sys.stdout.flush()

        def on_epoch_end(self, epoch, logs=None):
            print("\n", end="" if epoch % 2 else "\r")

    class Logs(Callback):
        def on_batch_end(self, batch, logs=None):
            logs = logs or {}
            if batch % 2 == 0:
                message = f"Epoch {self.params['epochs']}, Batch {batch}"
                for name, value in logs.items():
                    message += f" - {name}: {value:.4f}"
                LOGGER.info(message)
                logging.debug("%s", message)

    # What writes.

    def csv_file(folder):
        class Rows(Callback):
            def on_train_begin(self, logs=None):
                self.file = open(Path(folder) / "rows.csv", "w", newline="")  # noqa: SIM115
                self.writer = csv.writer(self.file)

            def on_train_batch_end(self, batch, logs=None):
                self.writer.writerow([batch, logs["loss"]])

            def on_train_end(self, logs=None):
                self.file.close()

        return Rows()

    def json_lines(folder):
        class Lines(Callback):
            def on_train_batch_end(self, batch, logs=None):
                try:
                    line = json.dumps({"batch": int(batch), **{k: float(v) for k, v in logs.items()}})
                except (KeyError, TypeError) as error:
                    line = str(error)
                with open(f"{folder}/lines.json", "a", encoding="utf-8") as f:
                    print(line, file=f)

        return Lines()

    # Bars.

    class Bars(Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.bar = tqdm(total=self.params["steps"], desc=f"Epoch {epoch + 1}", disable=True)

        def on_train_batch_end(self, batch, logs=None):
            self.bar.update(1)
            if logs:
                self.bar.set_postfix({"loss": f"{logs.get('loss', 0):.4f}"})

        def on_epoch_end(self, epoch, logs=None):
            self.bar.close()

    # Functions in a LambdaCallback.

    def a_function(folder):
        return keras.callbacks.LambdaCallback(on_train_batch_end=batch_output)

    def a_closure(folder):
        seen = []
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(logs["loss"])
        )

    def a_global_list(folder):
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: LOSSES.append(logs["loss"])
        )

    class CountsInANamespace(Callback):
        def on_train_batch_end(self, batch, logs=None):
            COUNTS.batches += 1

    def a_helper_of_the_module(folder):
        class Mine(Callback):
            def on_train_batch_end(self, batch, logs=None):
                batch_output(batch, logs)

        return Mine()

    # Epochs and their beginnings.

    class EpochTimes(Callback):
        def on_train_begin(self, logs=None):
            self.times = []

        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.time()

        def on_epoch_end(self, epoch, logs=None):
            self.times.append(time.time() - self.start)

    class Rates(Callback):
        def __init__(self):
            super().__init__()
            self.rates = []

        def on_epoch_begin(self, epoch, logs=None):
            self.rates.append(float(self.model.optimizer.learning_rate))
            print(f"Epoch {epoch}: rate {self.rates[-1]:.5f}", datetime.datetime.now() is None)

    class RateByEpoch(Callback):
        """Sets what the next epoch is trained with, which is found by comparison."""

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.optimizer.learning_rate = 0.01

    class WarmUpByEpoch(Callback):
        def on_epoch_begin(self, epoch, logs=None):
            keras.ops.convert_to_numpy(self.model.optimizer.learning_rate.assign(0.02 * (epoch + 1)))

    class MetricsAsAnEpochBegins(Callback):
        def on_train_begin(self, logs=None):
            self.metrics = []

        def on_epoch_begin(self, epoch, logs=None):
            if epoch:  # before the first one Keras has built no metrics
                self.metrics.append({k: float(v) for k, v in self.model.get_metrics_result().items()})

    class EvaluatesAsAnEpochBegins(Callback):
        """Leaves its batches in the metrics, with which Keras goes on."""

        def on_epoch_begin(self, epoch, logs=None):
            x = np.linspace(-1, 1, 36).reshape(3, 12).astype("float32")
            self.model.evaluate(x, np.arange(3), verbose=0)

    class Unfreezes(Callback):
        """Draws, and looks at the history, as an epoch begins."""

        def on_epoch_begin(self, epoch, logs=None):
            self.drawn = random.random()
            self.before = list(self.model.history.history.get("val_loss", []))

    class StopsAtAccuracy(Callback):
        def on_epoch_end(self, epoch, logs=None):
            if (logs or {}).get("val_loss", 9) < 1.2:
                print("\nReached, so cancelling training!")
                self.model.stop_training = True

    class OwnPlateau(Callback):
        def __init__(self, factor=0.5, patience=1):
            super().__init__()
            self.factor, self.patience, self.wait, self.best = factor, patience, 0, np.inf

        def on_epoch_end(self, epoch, logs=None):
            if logs["val_loss"] < self.best - 0.05:
                self.best, self.wait = logs["val_loss"], 0
                return
            self.wait += 1
            if self.wait >= self.patience:
                rate = float(self.model.optimizer.learning_rate)
                self.model.optimizer.learning_rate = rate * self.factor

    class BestWeights(keras.callbacks.EarlyStopping):
        def __init__(self):
            super().__init__("val_loss", patience=2, restore_best_weights=True)

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.seen = self.best

    def own_checkpoint(folder):
        class Saves(keras.callbacks.ModelCheckpoint):
            def on_epoch_end(self, epoch, logs=None):
                super().on_epoch_end(epoch, logs)
                print("saved", self.filepath is not None)

        return Saves(Path(folder) / "{epoch}.weights.h5", save_weights_only=True)

    class Confusion(Callback):
        def on_epoch_end(self, epoch, logs=None):
            x = np.linspace(-1, 1, 36).reshape(3, 12).astype("float32")
            self.classes = self.model.predict(x, verbose=0).argmax(-1)

    class Templates(Callback):
        def on_epoch_begin(self, epoch, logs=None):
            pass

        def on_batch_begin(self, batch, logs=None):
            """Nothing."""

        def on_batch_end(self, batch, logs={}):  # noqa: B006
            return

        def on_test_batch_end(self, batch, logs=None):
            pass


class AsksItsBase(Ahead.LossHistory):
    def on_train_batch_begin(self, batch, logs=None):
        super(AsksItsBase, self).on_train_batch_begin(batch, logs)  # noqa: UP008

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        self.count = len(self.losses)


class InStep:
    """Those that have to be called between its steps."""

    class WarmUp(Callback):
        def __init__(self, steps=6):
            super().__init__()
            self.steps, self.step = steps, 0

        def on_train_batch_begin(self, batch, logs=None):
            self.step += 1
            if self.step <= self.steps:
                self.model.optimizer.learning_rate = 0.1 * self.step / self.steps

    class RatesByBatch(Callback):
        def on_train_begin(self, logs=None):
            self.rates = []

        def on_train_batch_end(self, batch, logs=None):
            self.rates.append(float(self.model.optimizer.learning_rate))

    class Gradients(Callback):
        def on_train_begin(self, logs=None):
            self.norms = []

        def on_train_batch_end(self, batch, logs=None):
            self.norms.append([float(tf.norm(v)) for v in self.model.trainable_variables])

    class StopsOnLoss(Callback):
        def on_train_batch_end(self, batch, logs=None):
            if np.isnan(logs["loss"]) or logs["loss"] < 1.25:
                self.model.stop_training = True

    def a_lambda_that_sets(folder):
        return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: np.random.seed(batch))

    class ValidatesItself(Callback):
        def on_test_batch_end(self, batch, logs=None):
            self.model.layers[0].trainable = True


def factories(members):
    """Returns what makes each callback, given a folder."""
    named = {name: made for name, made in members.items() if not name.startswith("_")}
    return {n: (lambda folder, m=m: m()) if isinstance(m, type) else m for n, m in named.items()}


AHEAD = factories({**vars(Ahead), "AsksItsBase": AsksItsBase})
IN_STEP = factories(vars(InStep))
