"""A sweep of programs against Keras: what a callback does, in which hook, at which call, on which model.

For each action and hook the rest is drawn from `OVERLAP_TRAIN_SEED`. Two fits follow each other, the first
with the callback. Errors, histories, weights, optimizers and metrics are those of Keras.
"""

import functools
import os
import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from tests import networks, real_code
from tests.networks import arrays, assert_alike, crossentropy
from tests.whole_fits import test_metrics_by_python as by_python
from tests.whole_fits.comparing import AHEAD, IN_STEP, slices
from tests.whole_fits.test_replaced_methods import REPLACED

SEED = os.environ.get("OVERLAP_TRAIN_SEED", "0")
SGD, ERRORS = keras.optimizers.SGD, (ValueError, StopIteration, KeyboardInterrupt)


def plain():
    """Return a model of batch statistics and dropout, whose layers most actions are about."""
    layers = keras.layers
    made = (lambda: layers.Dense(8, "relu"), layers.BatchNormalization, lambda: layers.Dropout(0.25))
    return networks.linear(*made, optimizer=SGD(0.1, momentum=0.5), metrics=["accuracy"])


OPTIMIZERS = {
    "averaging": lambda: SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3),
    "scaling": lambda: keras.optimizers.LossScaleOptimizer(SGD(0.1), dynamic_growth_steps=3),
}
MODELS = {**real_code.BUILDERS, "plain": plain, "subclassed": networks.subclassed}
MODELS |= {name: lambda make=make: networks.sequential(make()) for name, make in OPTIMIZERS.items()}
MODELS |= {kind.__name__: functools.partial(by_python.network, kind) for kind in by_python.METRICS}
HOOKS = {  # the calls at which an action happens, of four epochs of four steps and three validation batches
    **{f"on_{what}": (1, 2, 3) for what in ("epoch_begin", "epoch_end", "test_begin", "test_end")},
    **{f"on_train_batch_{when}": (1, 2, 5, 8) for when in ("begin", "end")},
    "on_train_begin": (1,),
    "on_test_batch_end": (1, 3, 5),
}


class Seen:
    """A model, its data, and what a program has seen so far."""

    def __init__(self, model):
        self.model, self.notes = model, []
        (self.x, self.y), (self.vx, self.vy) = arrays(64), arrays(40, 1)

    def note(self, *values):
        self.notes.append(values)

    def all_of_it(self, logs):
        model = self.model
        variables = [*model.metrics_variables, *getattr(model.optimizer, "variables", ())]
        self.note(
            dict(logs or {}), bool(model.stop_training), [np.array(v) for v in (*model.weights, *variables)]
        )


def makes(model, *functions):
    for function in functions:
        getattr(model, function)(force=True)


def compiles(model, *functions):
    model.compile(SGD(0.3), crossentropy(), metrics=["accuracy"])
    makes(model, *functions)


def raises(kind):
    raise kind("mine")


def saves(model):
    model.save_weights("sweep.weights.h5")
    model.load_weights("sweep.weights.h5")


ATTRIBUTES = {"train_function": None, "test_function": None, "trainable": False, "loss": "mse"}
ATTRIBUTES |= {"stop_training": True, "stop_evaluating": True, "run_eagerly": True, "steps_per_execution": 2}
# Without `compile` Keras's next fit keeps its compiled functions; ours follows what the model says.
FOLLOWED = ("run_eagerly", "steps_per_execution")
# Of the program and the logs that its hook is given.
ACTIONS = {
    "sees": lambda s, logs: s.all_of_it(logs),
    "compiles": lambda s, logs: compiles(s.model),
    "compiles and makes": lambda s, logs: compiles(s.model, "make_train_function", "make_test_function"),
    "makes": lambda s, logs: makes(s.model, "make_train_function", "make_test_function"),
    **{n: lambda s, logs, n=n, v=v: setattr(s.model, n, v) for n, v in ATTRIBUTES.items()},
    "learning_rate": lambda s, logs: setattr(s.model.optimizer, "learning_rate", 0.5),
    "freezes a layer": lambda s, logs: setattr(s.model.layers[0], "trainable", False),
    "sets dropout": lambda s, logs: setattr(s.model.layers[2], "rate", 0.9),
    "sets statistics": lambda s, logs: s.model.layers[1].moving_mean.assign(np.full(8, 3.0)),
    "sets weights": lambda s, logs: s.model.set_weights([0.5 * w for w in s.model.get_weights()]),
    "saves and loads": lambda s, logs: saves(s.model),
    "another optimizer": lambda s, logs: setattr(s.model, "optimizer", SGD(0.5)),
    "iterations": lambda s, logs: s.model.optimizer.iterations.assign(100),
    "resets metrics": lambda s, logs: s.model.reset_metrics(),
    "sets a metric": lambda s, logs: s.model.metrics[0].variables[0].assign(50.0),
    "renames a metric": lambda s, logs: setattr(s.model.metrics[0], "name", "renamed"),
    "attaches a metric": lambda s, logs: by_python.attach(s.model),
    "training rows": lambda s, logs: np.multiply(s.x, 2, out=s.x),
    "validation rows": lambda s, logs: np.multiply(s.vx, 2, out=s.vx),
    "seeds": lambda s, logs: keras.utils.set_random_seed(3),
    "evaluates": lambda s, logs: s.note(s.model.evaluate(s.vx, s.vy, verbose=0, return_dict=True)),
    "predicts": lambda s, logs: s.note(s.model.predict(s.vx[:8], verbose=0)),
    "trains on a batch": lambda s, logs: s.note(s.model.train_on_batch(s.x[:8], s.y[:8], return_dict=True)),
    "tests on a batch": lambda s, logs: s.note(s.model.test_on_batch(s.x[:8], s.y[:8], return_dict=True)),
    "fits": lambda s, logs: s.model.fit(s.x[:16], s.y[:16], verbose=0, shuffle=False),
    "calls": lambda s, logs: s.note(s.model(s.vx[:4], training=True)),
    **{f"raises {kind.__name__}": lambda s, logs, kind=kind: raises(kind) for kind in ERRORS},
    "changes logs": lambda s, logs: (logs if logs is not None else {}).update(loss=9.0, new=1.0),
    "clears logs": lambda s, logs: (logs if logs is not None else {}).clear(),
    "clears the history": lambda s, logs: s.model.history.history.clear(),
    "train_step": lambda s, logs: setattr(s.model, "train_step", lambda data: {"loss": tf.constant(5.0)}),
    "test_step": lambda s, logs: setattr(s.model, "test_step", lambda data: {"loss": tf.constant(5.0)}),
    **{f"replaces {name}": lambda s, logs, act=act: act(s.model) for name, act in REPLACED.items()},
    "epsilon": lambda s, logs: keras.config.set_epsilon(0.1),
    "functions run eagerly": lambda s, logs: tf.config.run_functions_eagerly(True),
    "adds a layer": lambda s, logs: s.model.add(keras.layers.Dense(4)),
}


def fits(seen, trained, action, hook, at, by_dataset):
    """Make two fits, the first with the callback; return what has been seen."""
    calls = []

    def call(self, *arguments, **named):
        calls.append(named.get("logs", arguments[-1] if arguments else None))
        if len(calls) == at:
            ACTIONS[action](seen, calls[-1])

    acts = type("Acts", (keras.callbacks.Callback,), {hook: call})()
    data = {"x": seen.x, "y": seen.y, "batch_size": 16, "validation_batch_size": 16}
    data["validation_data"] = (seen.vx, seen.vy)
    if by_dataset:
        data = {"x": slices(seen.x, seen.y).batch(16), "validation_data": slices(seen.vx, seen.vy).batch(16)}
    for epochs, callbacks in ((4, [acts]), (2, [])):
        try:
            history = trained.fit(**data, epochs=epochs, callbacks=callbacks, verbose=0)
            seen.note(dict(history.history), list(history.epoch))
        except (Exception, KeyboardInterrupt) as error:  # of which ours may say more
            seen.note(type(error).__name__, str(error).splitlines()[0].split(":")[0] if str(error) else "")
        seen.all_of_it(None)
    return seen.notes


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Returns what puts back settings of all models, and makes an empty folder the present one."""
    monkeypatch.chdir(tmp_path)

    def put_back():
        keras.config.set_epsilon(1e-7)
        tf.config.run_functions_eagerly(False)

    yield put_back
    put_back()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("models", ["plain", "any"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("hook", HOOKS)
def test_a_program_does_what_it_does_under_keras(hook, action, models, settings):
    draw = random.Random(f"{SEED} {action} {hook} {models}")
    build = MODELS[name := draw.choice(sorted(MODELS)) if models == "any" else "plain"]
    at, by_dataset = draw.choice(HOOKS[hook]), models == "any" and draw.random() < 0.3
    policy = draw.choice([AHEAD, AHEAD, IN_STEP])
    found = []
    for ours in (False, True):
        seen = Seen(build())
        trained = Trainer(seen.model, validation=policy) if ours else seen.model
        found.append(fits(seen, trained, action, hook, at, by_dataset))
        settings()
    where = f"{name}, call {at}, dataset {by_dataset}, lag {policy.max_lag}; {list(trained.messages)}:"
    if action in FOLLOWED:
        found = [notes[:2] for notes in found]  # those of the first fit
    assert_alike(*reversed(found), rtol=1e-4, atol=1e-5, where=where)
