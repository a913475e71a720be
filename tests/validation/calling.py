"""A fit with evaluation functions, and what a callback of Keras's would have got from calling them."""

from __future__ import annotations

import keras
import numpy as np

from overlap_train import Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, arrays, crossentropy
from tests.pools import pooled

WAIT_S = 60
ROUNDING = dict(rtol=1e-5, atol=2e-5)  # a mean of outputs of both signs cancels
X, Y = arrays(64)
kl = keras.layers


def predicted_mean(model):
    return float(np.mean(model.predict(X, verbose=0)))


def mean_output(model):
    """The same, without a function that is to be traced."""
    return float(np.mean(model(X, training=False)))


@pooled
def simple():
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((FEATURES,)), kl.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    return model


def fit(model, functions, *, epochs=3, callbacks=(), data=None, **policy):
    """Returns the trainer after a fit with evaluation functions and no other validation."""
    policy = {"overlap": "always"} | policy
    trainer = Trainer(model, validation=ValidationPolicy(functions=functions, **policy))
    trainer.fit(
        X, Y, batch_size=16, epochs=epochs, verbose=0, callbacks=list(callbacks), validation_data=data
    )
    return trainer


def expected_values(build, function, epochs=3, data=None):
    """Returns what a callback of Keras's gets from calling the function with its model."""
    found = []

    class Calls(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(function(self.model))

    build().fit(X, Y, batch_size=16, epochs=epochs, verbose=0, callbacks=[Calls()], validation_data=data)
    return found


def in_step(trainer):
    return [message for message in trainer.messages if "in step" in message]
