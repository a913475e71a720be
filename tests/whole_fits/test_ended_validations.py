"""A validation that `on_test_begin` ends has one call of steps, whoever sets `stop_evaluating` and how."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests import networks
from tests.networks import arrays, assert_same_history, assert_same_weights
from tests.pools import sequential

X, Y = arrays(48)
VALIDATION = arrays(40, 1)
MANY = arrays(130, 1)
AHEAD = ValidationPolicy(max_lag=1, overlap="always")


def end(model):
    setattr(model, "_".join(("stop", "evaluating")), True)  # by a name that stands nowhere


class Ends(keras.callbacks.Callback):
    def on_test_begin(self, logs=None):
        end(self.model)


class EndsAndHears(Ends):
    def __init__(self):
        super().__init__()
        self.heard = []

    def on_test_batch_end(self, batch, logs=None):
        self.heard.append((batch, round(float(logs["loss"]), 4)))


class Declared(Ends):
    overlap_safe = True


def dataset():
    return tf.data.Dataset.from_tensor_slices(VALIDATION).batch(8)


def generator():
    while True:
        for first in range(0, 40, 8):
            yield tuple(part[first : first + 8] for part in VALIDATION)


DATA = {
    "arrays": lambda: dict(validation_data=VALIDATION, validation_batch_size=8),
    "of many batches": lambda: dict(validation_data=MANY, validation_batch_size=2),
    "dataset": lambda: dict(validation_data=dataset()),
    "shuffled anew": lambda: dict(
        validation_data=tf.data.Dataset.from_tensor_slices(VALIDATION).shuffle(40, seed=3).batch(8)
    ),
    "generator": lambda: dict(validation_data=generator(), validation_steps=3),
}


def trained(fit, callback, **arguments):
    return fit(X, Y, batch_size=16, epochs=3, verbose=0, callbacks=[callback], **arguments).history


@pytest.mark.parametrize("kind", [Ends, EndsAndHears])
@pytest.mark.parametrize("data", DATA)
@pytest.mark.by_default("of many batches-Ends")
def test_a_fit_s_validations_are_those_of_keras(data, kind):
    models, callbacks = (sequential(), sequential()), (kind(), kind())
    expected = trained(models[0].fit, callbacks[0], **DATA[data]())
    actual = trained(Trainer(models[1], validation=AHEAD).fit, callbacks[1], **DATA[data]())
    assert_same_history(actual, expected)
    assert_same_weights(*models)
    assert getattr(callbacks[1], "heard", None) == getattr(callbacks[0], "heard", None)


@pytest.mark.nightly
def test_groups_of_steps_are_whole():
    models = [sequential(steps_per_execution=2) for _ in range(2)]
    expected = trained(models[0].fit, Ends(), **DATA["arrays"]())
    assert_same_history(
        trained(Trainer(models[1], validation=AHEAD).fit, Ends(), **DATA["arrays"]()), expected
    )


EVALUATED = {
    "arrays": lambda: (VALIDATION, dict(batch_size=8)),
    "of many batches": lambda: (MANY, dict(batch_size=2)),
    "dataset": lambda: ((dataset(),), {}),
    "generator": lambda: ((generator(),), dict(steps=3)),
}


@pytest.mark.by_default("of many batches", "arrays")
@pytest.mark.parametrize("data", EVALUATED)
def test_an_evaluation_is_that_of_keras_and_warns_of_nothing(data):
    def evaluated(evaluate):
        given, arguments = EVALUATED[data]()
        return evaluate(*given, verbose=0, callbacks=[Ends()], **arguments)

    expected = evaluated(sequential().evaluate)
    np.testing.assert_allclose(evaluated(Trainer(sequential()).evaluate), expected, rtol=1e-5)


def test_whoever_declares_that_it_only_watches_is_told():
    trainer = Trainer(sequential(), validation=AHEAD)
    with pytest.raises(ValueError, match="have been drawn already"):
        trained(trainer.fit, Declared(), **DATA["shuffled anew"]())


class Swaps(keras.callbacks.Callback):
    """Validates with other weights, as SwapEMAWeights does."""

    def on_test_begin(self, logs=None):
        self.kept = self.model.get_weights()
        self.model.set_weights([weight / 2 for weight in self.kept])

    def on_test_end(self, logs=None):
        self.model.set_weights(self.kept)


def averaging():
    return networks.sequential(keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [Swaps, keras.callbacks.SwapEMAWeights])
@pytest.mark.by_default("SwapEMAWeights")
def test_data_that_is_drawn_anew_is_drawn_once_where_weights_are_swapped_for_it(kind):
    data = DATA["shuffled anew"]
    models = averaging(), averaging()
    expected = trained(models[0].fit, kind(), validation_steps=2, **data())
    trainer = Trainer(models[1], validation=AHEAD)
    assert_same_history(trained(trainer.fit, kind(), validation_steps=2, **data()), expected)
    assert any(f"inside the validation: {kind.__name__}.on_test_begin;" in text for text in trainer.messages)
