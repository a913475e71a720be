"""A tf.data pipeline that shuffles and maps, a schedule by epoch, and a second fit that goes on."""

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(256, 6)).astype("float32")
y = (x[:, 0] * x[:, 1] > 0).astype("int64")
rows = tf.data.Dataset.from_tensor_slices((x, y))
train = rows.take(192).shuffle(192).map(lambda a, b: (a * 2.0, b)).batch(16).prefetch(2)
held_out = rows.skip(192).map(lambda a, b: (a * 2.0, b)).batch(16)

model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.8)
model.fit(train, epochs=3, validation_data=held_out, callbacks=[schedule], verbose=2)
model.fit(train, initial_epoch=3, epochs=5, validation_data=held_out, validation_freq=2, verbose=2)
print(model.evaluate(held_out, verbose=0, return_dict=True))
