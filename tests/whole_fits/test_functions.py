"""Evaluation functions in a fit: rollback, resume, other data, random runs against callbacks of Keras's."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy
from overlap_train.options.functions import metric_values
from tests.networks import FEATURES, arrays, assert_same_weights, crossentropy, linear, sequential, subclassed
from tests.test_differential import SETTINGS
from tests.validation.calling import X, Y, fit, mean_output, simple

kc = keras.callbacks
HELD = arrays(40, 5)


def test_a_rollback_calls_it_again_for_the_epochs_that_are_trained_again():
    calls = []

    def count(model):
        calls.append(int(model.optimizer.iterations))
        return 1.0

    plateau = kc.ReduceLROnPlateau("val_count", mode="min", patience=1, factor=0.5)
    trainer = fit(simple(), {"count": count}, epochs=4, max_lag=1, callbacks=[plateau])
    assert sorted(set(calls)) == [4, 8, 12, 16]
    assert len(trainer.model.history.history["val_count"]) == 4
    assert any("back to the end of epoch" in message for message in trainer.messages)


@pytest.mark.nightly
def test_weights_that_a_test_hook_sets_are_those_that_are_evaluated():
    def build():
        return linear(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5))

    found, expected = [], build()
    calls = kc.LambdaCallback(on_epoch_end=lambda *_: found.append(mean_output(expected)))
    callbacks = [calls, kc.SwapEMAWeights(swap_on_epoch=True)]
    expected.fit(X, Y, batch_size=16, epochs=3, verbose=0, validation_data=(X, Y), callbacks=callbacks)
    swap = [kc.SwapEMAWeights(swap_on_epoch=True)]
    trainer = fit(build(), {"mean": mean_output}, data=(X, Y), callbacks=swap)
    np.testing.assert_allclose(trainer.model.history.history["val_mean"], found, rtol=1e-5)


def test_a_resumed_training_has_the_values_of_an_unbroken_one(tmp_path):
    def values(epochs, name):
        trainer = Trainer(simple(), validation=ValidationPolicy(functions={"mean": mean_output}))
        return trainer.fit(X, Y, epochs=epochs, verbose=0, resume=tmp_path / name).history["val_mean"]

    whole, _ = values(4, "a"), values(2, "b")
    np.testing.assert_allclose(values(4, "b"), whole, rtol=1e-6)


# Random runs.


def normalised():
    keras.utils.set_random_seed(7)
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dropout(0.2)(hidden)))
    model.compile("adam", crossentropy(), metrics=["accuracy"])
    return model


def plain():
    return sequential(keras.optimizers.SGD(0.3, momentum=0.9))


BUILDERS = {"adam": sequential, "sgd": plain, "batch statistics": normalised, "subclassed": subclassed}
FUNCTIONS = {
    "predicts": lambda model: float(np.mean(model.predict(HELD[0], verbose=0) ** 2)),
    "evaluates": lambda model: {"held": model.evaluate(*HELD, verbose=0, return_dict=True)},
    "calls": lambda model: {
        "norm": np.linalg.norm(model(HELD[0], training=False)),
        "steps": model.optimizer.iterations,
    },
    "weights": lambda model: {"sum": {str(i): np.abs(w).sum() for i, w in enumerate(model.get_weights())}},
}
MONITORED = "val_predicts"
CALLBACKS = {
    "none": list,
    "stop": lambda: [kc.EarlyStopping(MONITORED, mode="min", patience=1, restore_best_weights=True)],
    "plateau": lambda: [kc.ReduceLROnPlateau(MONITORED, mode="max", patience=1, factor=0.5)],
}


@st.composite
def runs(draw):
    return {
        "build": draw(st.sampled_from(sorted(BUILDERS))),
        "clone": draw(st.booleans()),
        "functions": {"predicts", *draw(st.lists(st.sampled_from(sorted(FUNCTIONS)), max_size=2))},
        "freq": draw(st.sampled_from([1, 1, 2, [1, 3]])),
        "callbacks": draw(st.sampled_from(sorted(CALLBACKS))),
        "sets": draw(st.booleans()),
        "batch_size": draw(st.integers(5, 40)),
        "epochs": draw(st.integers(1, 5)),
        "lag": draw(st.integers(0, 2)),
    }


class CallFirst(kc.Callback):
    """Calls functions as a callback of Keras's would, before the others see the logs."""

    def __init__(self, names, freq):
        super().__init__()
        self.names, self.freq = names, freq

    def on_epoch_end(self, epoch, logs=None):
        due = epoch + 1 in self.freq if isinstance(self.freq, list) else (epoch + 1) % self.freq == 0
        for name in self.names if due else ():
            for key, value in metric_values(FUNCTIONS[name](self.model)).items():
                logs["_".join(part for part in ("val", name, key) if part)] = value


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")
@settings(max_examples=100, **(SETTINGS | dict(derandomize=False)))
@given(run=runs())
def test_any_function_gives_what_a_callback_of_keras_gets(run):
    note(str(run))
    build, names = BUILDERS[run["build"]], sorted(run["functions"])
    arguments = dict(batch_size=run["batch_size"], epochs=run["epochs"], verbose=0)
    if run["sets"]:
        arguments["validation_data"] = arrays(30, 1)
    expected = build()
    callbacks = [CallFirst(names, run["freq"]), *CALLBACKS[run["callbacks"]]()]
    expected.fit(*arrays(80), callbacks=callbacks, **arguments)
    actual = build()
    clone = (lambda: type(actual)()) if run["clone"] and run["build"] == "subclassed" else None
    functions = {n: EvaluationFunction(FUNCTIONS[n], freq=run["freq"], clone=clone) for n in names}
    policy = ValidationPolicy(functions=functions, max_lag=run["lag"], overlap="always")
    trainer = Trainer(actual, validation=policy)
    trainer.fit(*arrays(80), callbacks=CALLBACKS[run["callbacks"]](), **arguments)
    ours, theirs = actual.history.history, expected.history.history
    assert sorted(ours) == sorted(theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert_same_weights(actual, expected)
    in_step = any("needs the model itself" in message for message in trainer.messages)
    assert in_step == (run["build"] == "subclassed" and clone is None and run["lag"] > 0)
