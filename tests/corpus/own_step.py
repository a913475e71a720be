"""A model with a train_step, a test_step and a metric of its own."""

import keras
import numpy as np
import tensorflow as tf


class Share(keras.metrics.Metric):
    """The share of predictions within one of their targets."""

    def __init__(self):
        super().__init__(name="share")
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.rows = self.add_weight(name="rows", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        near = tf.abs(tf.reshape(y_true, [-1]) - tf.reshape(y_pred, [-1])) < 1.0
        self.hits.assign_add(tf.reduce_sum(tf.cast(near, tf.float32)))
        self.rows.assign_add(tf.cast(tf.size(near), tf.float32))

    def result(self):
        return self.hits / tf.maximum(self.rows, 1.0)


class Scaled(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.out = keras.layers.Dense(8, "relu"), keras.layers.Dense(1)
        self.tracker, self.share = keras.metrics.Mean(name="loss"), Share()

    def call(self, x):
        return self.out(self.dense(x))

    @property
    def metrics(self):
        return [self.tracker, self.share]

    def measured(self, x, y):
        predicted = self(x)
        loss = tf.reduce_mean(tf.square(y[:, None] - predicted))
        self.tracker.update_state(loss)
        self.share.update_state(y, predicted)
        return loss

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.measured(x, y)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data):
        self.measured(*data)
        return {metric.name: metric.result() for metric in self.metrics}


rng = np.random.default_rng(0)
x = rng.normal(size=(192, 4)).astype("float32")
y = (2 * x[:, 0] - x[:, 1]).astype("float32")
keras.utils.set_random_seed(1)
model = Scaled()
model.compile(optimizer="adam")
model.fit(x, y, 16, epochs=4, validation_data=(x[:64], y[:64]), verbose=2)
print(f"share: {model.evaluate(x, y, verbose=0, return_dict=True)['share']:.4f}")
