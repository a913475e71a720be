"""Hooks that end an epoch's or a validation's batches are refused or live; weights that they swap count."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests import networks
from tests.networks import arrays
from tests.pools import sequential
from tests.whole_fits.comparing import assert_as_keras, slices

X, Y = arrays(40)
VALIDATION = arrays(32, 1)
ALWAYS = ValidationPolicy(max_lag=1, overlap="always")
HOOKS = ("on_train_batch_begin", "on_train_batch_end")


def shuffled():
    return slices(*VALIDATION).shuffle(40, seed=3).batch(8)


def fit(trained, callback, data=VALIDATION, **more):
    given = {"validation_data": data, "validation_batch_size": 8 if data is VALIDATION else None}
    return trained.fit(X, Y, epochs=3, batch_size=16, verbose=0, callbacks=[callback], **given, **more)


def ends(hook, error):
    """Returns a callback that says at the second batch that the data has ended."""

    def end(batch, logs=None):
        if batch == 1:
            raise error

    return type("Ends", (keras.callbacks.Callback,), {hook: staticmethod(end)})()


@pytest.mark.parametrize("error", [StopIteration("mine"), tf.errors.OutOfRangeError(None, None, "mine")])
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.by_default("on_train_batch_end-error0")
def test_a_batch_hook_that_says_that_the_data_has_ended_is_an_error(hook, error):
    with pytest.raises(type(error), match="mine"):
        fit(Trainer(sequential(), validation=ALWAYS), ends(hook, error))


class StopsEvaluating(keras.callbacks.Callback):
    """Declares that it only watches, or the validation would be made live."""

    overlap_safe = True

    def on_test_begin(self, logs=None):
        setattr(self.model, "_".join(("stop", "evaluating")), True)  # by a name that stands nowhere


def test_a_validation_is_not_to_be_ended_as_it_begins():
    trainer = Trainer(sequential(), validation=ALWAYS)
    with pytest.raises(ValueError, match="set it in on_test_batch_end"):
        fit(trainer, StopsEvaluating())
    with pytest.raises(ValueError, match="set it in on_test_batch_end"):
        trainer.evaluate(*VALIDATION, verbose=0, callbacks=[StopsEvaluating()])


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
def test_data_that_is_drawn_anew_is_drawn_once_where_weights_are_swapped_for_it(kind):
    def run(trained):
        return fit(trained, kind(), shuffled(), validation_steps=2)

    trainer = assert_as_keras(run, ALWAYS, build=averaging)
    assert any(f"inside the validation: {kind.__name__}.on_test_begin" in text for text in trainer.messages)
