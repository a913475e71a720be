"""A variational autoencoder: a layer that draws and adds a loss."""

import keras
import numpy as np


class Sampling(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_variance = inputs
        penalty = keras.ops.mean(keras.ops.exp(log_variance) + mean**2 - 1.0 - log_variance)
        self.add_loss(0.01 * penalty)
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).random((256, 10), np.float32)
inputs = keras.Input((10,))
hidden = keras.layers.Dense(8, "relu")(inputs)
drawn = Sampling()([keras.layers.Dense(3)(hidden), keras.layers.Dense(3)(hidden)])
outputs = keras.layers.Dense(10, "sigmoid")(keras.layers.Dense(8, "relu")(drawn))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "mse")
model.fit(x, x, 32, epochs=4, validation_data=(x[:64], x[:64]), verbose=2)
model.save("autoencoder.keras")
