"""A network is trained, its first layers are frozen, and a new head is trained on other labels."""

import keras
import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(256, 9)).astype("float32")
coarse, fine = (x[:, 0] > 0).astype("int64"), np.digitize(x[:, 1], [-0.5, 0.5])


def train(model, y, epochs, rate):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate), loss, metrics=["accuracy"])
    decay = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(sorted(logs)))
    model.fit(
        x[:192], y[:192], 32, epochs=epochs, validation_data=(x[192:], y[192:]), callbacks=[decay], verbose=0
    )
    print(f"accuracy: {model.evaluate(x[192:], y[192:], verbose=0)[1]:.4f}")


keras.utils.set_random_seed(1)
base = keras.Sequential(
    [keras.Input((9,)), keras.layers.Dense(16, "gelu"), keras.layers.LayerNormalization()]
)
train(keras.Sequential([base, keras.layers.Dense(2)]), coarse, epochs=3, rate=0.01)
base.trainable = False
tuned = keras.Sequential([base, keras.layers.Dropout(0.2), keras.layers.Dense(3)])
train(tuned, fine, epochs=3, rate=0.01)
base.trainable = True
train(tuned, fine, epochs=2, rate=0.001)
