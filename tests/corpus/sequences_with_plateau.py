"""An LSTM on padded sequences; the learning rate falls where the loss does not."""

import keras
import numpy as np

rng = np.random.default_rng(0)
lengths = rng.integers(3, 12, 256)
x = np.where(np.arange(12) < lengths[:, None], rng.integers(1, 30, (256, 12)), 0)
y = (x.sum(1) / lengths > 15).astype("float32")

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((12,), dtype="int32"),
        keras.layers.Embedding(30, 8, mask_zero=True),
        keras.layers.LSTM(12),
        keras.layers.Dense(1, activation="sigmoid"),
    ]
)
model.compile("adam", "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), "accuracy"])
plateau = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=0.05)
history = model.fit(
    x[:192], y[:192], 32, epochs=5, validation_data=(x[192:], y[192:]), callbacks=[plateau], verbose=2
)
print([f"{rate:.5f}" for rate in history.history["learning_rate"]])
