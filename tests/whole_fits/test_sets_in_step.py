"""Validations in step by Keras's `evaluate`: each set has its own data, whatever was fitted before."""

from __future__ import annotations

import keras
import pytest

from overlap_train import Trainer
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy

X, Y = arrays(40)
NEAR, FAR = arrays(24, 1), arrays(32, 2)


class Evaluating(keras.Sequential):
    def evaluate(self, *args, **options):
        return super().evaluate(*args, **options)


def build(kind=Evaluating, **compiled):
    keras.utils.set_random_seed(1)
    model = kind([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), metrics=["accuracy"], **compiled)
    return model


def fitted(fit, validation, **options):
    return fit(X, Y, epochs=2, verbose=0, shuffle=False, validation_data=validation, **options).history


@pytest.mark.nightly
@pytest.mark.by_default("<lambda>")
@pytest.mark.parametrize("made", [build, lambda: build(keras.Sequential, run_eagerly=True)])
def test_each_of_several_sets_is_evaluated(made):
    found = fitted(Trainer(made()).fit, {"near": NEAR, "far": FAR})
    for name, data in (("near", NEAR), ("far", FAR)):
        expected = fitted(made().fit, data)
        ours = {key.replace(f"val_{name}_", "val_"): values for key, values in found.items() if name in key}
        assert_same_history(ours, {key: expected[key] for key in ours})


class Fails(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise RuntimeError("between two epochs")


@pytest.mark.nightly
def test_a_fit_of_keras_s_that_failed_leaves_its_data_to_no_other():
    expected, actual = build(), build()
    for model in (expected, actual):
        with pytest.raises(RuntimeError, match="between two"):
            fitted(model.fit, FAR, callbacks=[Fails()])
    assert_same_history(fitted(Trainer(actual).fit, NEAR), fitted(expected.fit, NEAR))


class Evaluates(keras.callbacks.Callback):
    """Evaluates other data between two epochs, with a trainer or with Keras."""

    def __init__(self, made):
        super().__init__()
        self.made, self.found = made, []

    def on_epoch_end(self, epoch, logs=None):
        self.found.append(self.made(self.model).evaluate(*FAR, verbose=0, return_dict=True))


@pytest.mark.nightly
def test_an_evaluate_within_a_fit_has_data_of_its_own():
    theirs, ours = Evaluates(lambda model: model), Evaluates(Trainer)
    expected = fitted(build().fit, NEAR, callbacks=[theirs])
    assert_same_history(fitted(Trainer(build()).fit, NEAR, callbacks=[ours]), expected)
    for found, wanted in zip(ours.found, theirs.found, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)
