"""Callbacks are listed as Keras lists them."""

from __future__ import annotations

import keras
import pytest

from overlap_train._fit.callback_list import listened_to, make_callback_list
from tests.pools import sequential


def make(callbacks, **options):
    arguments = {"verbose": 0, "epochs": 3, "steps": 5} | options
    return make_callback_list(sequential(), callbacks, **arguments)


def test_a_list_of_the_users_own_stays_as_it_is():
    own = keras.callbacks.CallbackList([keras.callbacks.Callback()], model=sequential())
    assert make(own) is own


@pytest.mark.parametrize(
    "given", [None, [], keras.callbacks.TerminateOnNaN(), [keras.callbacks.TerminateOnNaN()]]
)
def test_a_history_is_added_and_a_bar_is_not(given):
    kinds = [type(callback) for callback in make(given, verbose=1).callbacks]
    assert kinds.count(keras.callbacks.History) == 1
    assert keras.callbacks.ProgbarLogger not in kinds
    assert kinds.count(keras.callbacks.TerminateOnNaN) == (1 if given else 0)


def test_an_evaluation_has_no_history():
    assert make(None, history=False).callbacks == []


def test_every_callback_learns_the_model_and_the_parameters():
    callback = keras.callbacks.Callback()
    made = make(callback, verbose=2)
    assert callback.params == {"verbose": 2, "epochs": 3, "steps": 5}
    assert callback.model is not None
    assert made.callbacks[-1].model is callback.model or made.callbacks[0].model is callback.model


class Listening(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        print(batch)


@pytest.mark.parametrize(
    ("callbacks", "found"), [([], False), ([keras.callbacks.CSVLogger("x")], False), ([Listening()], True)]
)
def test_who_listens_to_the_batches_of_a_validation(callbacks, found):
    assert listened_to(make(callbacks)) is found
