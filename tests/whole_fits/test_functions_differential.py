"""Random runs with evaluation functions: equal to calling them in `on_epoch_end` under Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy
from overlap_train.options.functions import metric_values
from tests.networks import FEATURES, arrays, assert_same_weights, sequential, subclassed
from tests.test_differential import SETTINGS

kc = keras.callbacks
HELD = arrays(40, 5)


def plain():
    return sequential(keras.optimizers.SGD(0.3, momentum=0.9))


def normalised():
    keras.utils.set_random_seed(7)
    inputs = keras.Input((FEATURES,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, "relu")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dropout(0.2)(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


BUILDERS = {"adam": sequential, "sgd": plain, "batch statistics": normalised, "subclassed": subclassed}
CLONES = {"subclassed": lambda: type(subclassed())()}


def predicts(model):
    return float(np.mean(model.predict(HELD[0], verbose=0) ** 2))


def evaluates(model):
    return {"held": model.evaluate(*HELD, verbose=0, return_dict=True)}


def calls(model):
    return {"norm": np.linalg.norm(model(HELD[0], training=False)), "steps": model.optimizer.iterations}


def reads_weights(model):
    return {"weights": {str(i): np.abs(w).sum() for i, w in enumerate(model.get_weights())}}


FUNCTIONS = {"predicts": predicts, "evaluates": evaluates, "calls": calls, "weights": reads_weights}
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


def check(run):
    note(str(run))
    build, names = BUILDERS[run["build"]], sorted(run["functions"])
    arguments = dict(batch_size=run["batch_size"], epochs=run["epochs"], verbose=0)
    if run["sets"]:
        arguments["validation_data"] = arrays(30, 1)
    expected = build()
    callbacks = [CallFirst(names, run["freq"]), *CALLBACKS[run["callbacks"]]()]
    expected.fit(*arrays(80), callbacks=callbacks, **arguments)
    clone = CLONES.get(run["build"]) if run["clone"] else None
    functions = {n: EvaluationFunction(FUNCTIONS[n], freq=run["freq"], clone=clone) for n in names}
    policy = ValidationPolicy(functions=functions, max_lag=run["lag"], overlap="always")
    actual = build()
    trainer = Trainer(actual, validation=policy)
    trainer.fit(*arrays(80), callbacks=CALLBACKS[run["callbacks"]](), **arguments)
    ours, theirs = actual.history.history, expected.history.history
    assert sorted(ours) == sorted(theirs)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-4, atol=2e-5, err_msg=name)
    assert_same_weights(actual, expected)
    in_step = any("needs the model itself" in message for message in trainer.messages)
    assert in_step == (run["build"] == "subclassed" and clone is None and run["lag"] > 0)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")
@settings(max_examples=2, **SETTINGS)
@given(run=runs())
def test_any_function_gives_what_a_callback_of_keras_gets(run):
    check(run)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore:.* conditioned on metric")
@settings(max_examples=100, **(SETTINGS | dict(derandomize=False)))
@given(run=runs())
def test_any_function_gives_what_a_callback_of_keras_gets_nightly(run):
    check(run)
