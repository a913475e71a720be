"""Regression on arrays: a split of the rows validates, and EarlyStopping ends the training."""

import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(320, 8)).astype("float32")
y = x @ rng.normal(size=8) + 0.1 * rng.normal(size=320)

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
)
model.compile("rmsprop", "mse", metrics=["mae"])
callbacks = [
    keras.callbacks.EarlyStopping(monitor="val_mae", min_delta=0.5, patience=1, restore_best_weights=True),
    keras.callbacks.CSVLogger("training.csv"),
]
history = model.fit(x, y, 32, epochs=12, validation_split=0.2, callbacks=callbacks, verbose=2)
print("epochs:", len(history.history["loss"]))
print(f"mae: {model.evaluate(x, y, verbose=0)[1]:.4f}")
