"""A convolutional network on images that are augmented; the best weights are saved and loaded again."""

import keras
import numpy as np

rng = np.random.default_rng(0)
y = rng.integers(0, 3, 192)
x = rng.random((192, 12, 12, 1), np.float32) + y[:, None, None, None] * 0.3

keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential(
    [
        keras.Input((12, 12, 1)),
        layers.RandomFlip("horizontal"),
        layers.Conv2D(8, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(3, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
best = keras.callbacks.ModelCheckpoint("best.weights.h5", save_best_only=True, save_weights_only=True)
model.fit(x[:128], y[:128], 16, epochs=4, validation_data=(x[128:], y[128:]), callbacks=[best], verbose=2)
model.load_weights("best.weights.h5")
print(f"accuracy: {model.evaluate(x[128:], y[128:], verbose=0)[1]:.4f}")
