"""Batches from a Python generator that draws, and a callback that notes what it gets."""

import keras
import numpy as np


def batches(seed):
    rng = np.random.default_rng(seed)
    while True:
        x = rng.normal(size=(16, 5)).astype("float32")
        yield x, np.maximum(x, 0).sum(1)


class Notes(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(round(logs["val_loss"], 4))


keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
notes = Notes()
model.fit(
    batches(0),
    steps_per_epoch=8,
    epochs=4,
    validation_data=next(batches(1)),
    callbacks=[notes],
    verbose=2,
)
print(notes.losses)
