"""What the hooks of callbacks are given as `logs`: Keras's objects, however and whenever a hook is called."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays
from tests.pools import pooled, sequential

X, Y = arrays(40)
VALIDATION = arrays(30, 1)
ARGUMENTS = dict(batch_size=16, epochs=3, verbose=0, shuffle=False)
HOOKS = [
    *(f"on_{what}_{when}" for what in ("train", "test", "epoch") for when in ("begin", "end")),
    *(f"on_{what}_batch_{when}" for what in ("train", "test") for when in ("begin", "end")),
]
WITHOUT_TESTS = [
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"),
]


def noting(*hooks, add=False):
    """Returns a callback that notes the arguments of some hooks, and perhaps adds to their logs."""

    class Notes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.calls = []

    def define(hook):
        def note(self, *arguments, logs=None):
            *number, logs = arguments if logs is None else (*arguments, logs)
            self.calls.append((hook, number, type(logs), dict(logs)))
            if add:
                logs["added"] = 1.0

        setattr(Notes, hook, note)

    for hook in hooks:
        define(hook)
    return Notes()


def assert_same(actual, expected):
    assert [call[:3] for call in actual] == [call[:3] for call in expected]
    for one, other in zip(actual, expected, strict=True):
        assert list(one[3]) == list(other[3]), one[:2]
        np.testing.assert_allclose(list(one[3].values()), list(other[3].values()), rtol=1e-5, atol=1e-7)


def policies():
    yield "in step", ValidationPolicy(max_lag=0)
    yield "ahead", ValidationPolicy(max_lag=2, overlap="always")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "hooks", [HOOKS, WITHOUT_TESTS, ["on_batch_begin", "on_batch_end"]], ids=["all", "training", "batches"]
)
@pytest.mark.by_default("batches")
def test_every_hook_of_a_fit_is_given_what_keras_gives(hooks):
    expected = noting(*hooks)
    sequential().fit(X, Y, validation_data=VALIDATION, callbacks=[expected], **ARGUMENTS)
    assert {call[0] for call in expected.calls} == set(hooks)
    for _, policy in policies():
        notes = noting(*hooks)
        Trainer(sequential(), validation=policy).fit(
            X, Y, validation_data=VALIDATION, callbacks=[notes], **ARGUMENTS
        )
        assert_same(notes.calls, expected.calls)


@pytest.mark.nightly
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"])
@pytest.mark.by_default("on_train_batch_end")
def test_what_one_callback_adds_to_the_logs_the_next_one_sees(hook):
    first, expected = noting(hook, add=True), noting(hook)
    sequential().fit(X, Y, validation_data=VALIDATION, callbacks=[first, expected], **ARGUMENTS)
    assert all("added" in call[3] for call in expected.calls)
    for _, policy in policies():
        notes = noting(hook)
        callbacks = [noting(hook, add=True), notes]
        Trainer(sequential(), validation=policy).fit(
            X, Y, validation_data=VALIDATION, callbacks=callbacks, **ARGUMENTS
        )
        assert_same(notes.calls, expected.calls)


def grouped():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, steps_per_execution=2)
    return model


@pytest.mark.parametrize("build", [sequential, pooled(grouped)], ids=["steps", "groups"])
def test_every_hook_of_an_evaluate_is_given_what_keras_gives(build):
    expected, notes = noting(*HOOKS), noting(*HOOKS)
    build().evaluate(X, Y, batch_size=10, verbose=0, callbacks=[expected])
    Trainer(build()).evaluate(X, Y, batch_size=10, verbose=0, callbacks=[notes])
    assert expected.calls
    assert_same(notes.calls, expected.calls)
