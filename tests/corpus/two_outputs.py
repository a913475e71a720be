"""Two inputs and two outputs by name, with weights for rows and losses, in mixed regularized layers."""

import keras
import numpy as np

rng = np.random.default_rng(0)
x = {"left": rng.random((192, 4), np.float32), "right": rng.random((192, 3), np.float32)}
y = {"label": rng.integers(0, 3, 192), "size": x["left"].sum(1, keepdims=True)}
weights = {"label": rng.random(192).astype("float32"), "size": np.ones(192, "float32")}


def first(values, count):
    return {name: value[:count] for name, value in values.items()}


keras.utils.set_random_seed(1)
inputs = {name: keras.Input((value.shape[1],), name=name) for name, value in x.items()}
hidden = keras.layers.Concatenate()(list(inputs.values()))
hidden = keras.layers.Dense(12, "relu", kernel_regularizer="l2")(hidden)
outputs = {
    "label": keras.layers.Dense(3, "softmax", name="label")(hidden),
    "size": keras.layers.Dense(1, name="size")(hidden),
}
model = keras.Model(inputs, outputs)
model.compile(
    "adam",
    {"label": "sparse_categorical_crossentropy", "size": "mse"},
    loss_weights={"label": 1.0, "size": 0.5},
    metrics={"label": ["accuracy"], "size": ["mae"]},
)
model.fit(
    x,
    y,
    32,
    epochs=4,
    sample_weight=weights,
    validation_data=(first(x, 64), first(y, 64), first(weights, 64)),
    verbose=2,
)
