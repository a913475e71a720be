"""A fit with evaluation functions, and what a callback of Keras's would have got from calling them."""

import keras
import numpy as np

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, linear
from tests.pools import pooled

WAIT_S = 60
ROUNDING = dict(rtol=1e-5, atol=2e-5)  # a mean of outputs of both signs cancels
X, Y = arrays(64)
kl = keras.layers


def mean_output(model):
    """Calls the model itself, so that no function is to be traced."""
    return float(np.mean(model(X, training=False)))


@pooled
def simple():
    return linear(metrics=["accuracy"])


def fit(model, functions, *, epochs=3, callbacks=(), **policy):
    """Returns the trainer after a fit with evaluation functions and no other validation."""
    policy = {"overlap": "always"} | policy
    trainer = Trainer(model, validation=ValidationPolicy(functions=functions, **policy))
    trainer.fit(X, Y, batch_size=16, epochs=epochs, verbose=0, callbacks=list(callbacks))
    return trainer


def expected_values(build, function):
    """Returns what a callback of Keras's gets from calling the function with its model."""
    found = []

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(function(self.model))

    build().fit(X, Y, batch_size=16, epochs=3, verbose=0, callbacks=[Calls()])
    return found


def in_step(trainer):
    return [message for message in trainer.messages if "in step" in message]
