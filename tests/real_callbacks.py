"""Callbacks as people write them, which set and read what the models of `real_code.py` keep."""

import keras
import numpy as np


class TurnKnob(keras.callbacks.Callback):
    """Sets the variable outside the model, if the builder has given one, after every other epoch."""

    def on_epoch_end(self, epoch, logs=None):
        for knob in vars(self.model).get("knob", ()):
            if epoch % 2 == 0:
                knob.assign(knob * 0.5)


class ReadMetrics(keras.callbacks.Callback):
    """Writes down what the model's metrics say when it is called."""

    def __init__(self, path) -> None:
        super().__init__()
        self.path = path

    def _note(self, when, epoch):
        values = {k: np.asarray(v) for k, v in self.model.get_metrics_result().items()}
        with open(self.path, "a") as file:
            for name, value in sorted(values.items()):
                for number in np.ravel(value):
                    file.write(f"{when} {epoch} {name},{float(number):.4f}\n")

    def on_test_end(self, logs=None):
        self._note("test", -1)

    def on_epoch_end(self, epoch, logs=None):
        self._note("epoch", epoch)


class CountBatches(keras.callbacks.Callback):
    """Writes down the numbers of the batches around which it is called."""

    def __init__(self, path) -> None:
        super().__init__()
        self.path = path

    def _note(self, when, batch):
        with open(self.path, "a") as file:
            file.write(f"{when} {batch}\n")

    def on_train_batch_begin(self, batch, logs=None):
        self._note("train begin", batch)

    def on_train_batch_end(self, batch, logs=None):
        self._note(f"train end {sorted(logs)}", batch)

    def on_test_batch_end(self, batch, logs=None):
        self._note(f"test end {sorted(logs)}", batch)
