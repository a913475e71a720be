"""A `fit` or an `evaluate` that is not Keras's: what only a `Trainer` does reaches it, or is refused."""

from __future__ import annotations

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction, ExecutionPlan, Trainer, ValidationPolicy, ValidationSet
from overlap_train.monitoring import SpanRecorder
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, linear

X, Y = arrays(48)
VALIDATION = arrays(24, 1)


def built(kind, optimizer="adam", **arguments):
    given = {"kind": kind, "optimizer": optimizer, "metrics": ["accuracy"], **arguments}
    return linear(lambda: keras.layers.Dropout(0.2), **given)


def gradients(model, variables):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model.loss(Y, model(X, training=True)))
    return tape.gradient(loss, variables)


class Own(keras.Sequential):
    """Trains by itself, in `train`; `ended` counts how often that went well."""

    ended = 0

    def fit(self, x, y, **arguments):
        for _ in range(2):
            self.train()
            self.ended += 1
        return keras.callbacks.History()


def by_batches(model):
    model.train_on_batch(X, Y)


def by_tape(model):
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(gradients(model, variables), variables, strict=True))


def by_function(model):
    if not hasattr(model, "step"):
        model.step = tf.function(
            lambda: model.optimizer.apply(
                gradients(model, model.trainable_variables), model.trainable_variables
            )
        )
    model.step()


def by_another_library(model):
    values = [variable.value for variable in model.trainable_variables]
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    optimizer.apply_gradients(zip(gradients(model, values), values, strict=True))


def and_catches(model):
    try:
        model.train_on_batch(X, Y)
    except ValueError:
        model.ended -= 1


def by_hand(model):
    variables = model.trainable_variables
    for variable, gradient in zip(variables, gradients(model, variables), strict=True):
        variable.assign_sub(0.1 * gradient)


def nothing(model):
    pass


# Seen at their first update, and at the end; with what the model is compiled.
EARLY = [(by_batches, {}), (by_batches, {"run_eagerly": True}), (by_batches, {"optimizer": "ftrl"})]
EARLY += [(by_tape, {}), (by_function, {}), (by_another_library, {}), (and_catches, {})]
LATE = [(by_hand, {}), (nothing, {})]
ByBatches = type("ByBatches", (Own,), {"train": by_batches})


def state(model):
    return {v.path: np.array(v) for v in [*model.variables, *model.optimizer.variables]}


def assert_refused(model, call, words):
    """Make a call that has to be refused and to leave the model as it was."""
    before, model.ended = state(model), 0
    with pytest.raises(ValueError, match=words):
        call()
    after = state(model)
    for name, value in after.items():  # the optimizer's variables may have been made
        np.testing.assert_array_equal(value, before.get(name, value), err_msg=name)


@pytest.mark.parametrize(("train", "compiled"), [*EARLY, *LATE])
@pytest.mark.by_default("by_function-compiled4")
def test_a_fit_that_trains_by_itself_is_refused_where_it_is_to_be_resumed(train, compiled, tmp_path):
    model = built(type("ByItself", (Own,), {"train": train}), **compiled)
    if train is by_function:
        model.fit(X, Y)  # so that it is traced
    resume = tmp_path / "run"
    words = (
        r"Own.fit trains by itself, without keras.Model.fit, so that resume would be ignored; call super\(\)"
    )
    assert_refused(model, lambda: Trainer(model).fit(X, Y, verbose=0, resume=resume), words)
    ended = 2 if (train, compiled) in LATE else 0
    assert model.ended == ended
    assert not resume.exists()
    model.fit(X, Y)  # works as before
    assert model.ended == ended + 2 or train is and_catches


class OwnSteps(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)


class OwnValidation(Trainer):
    def validation_step(self, batch):
        return super().validation_step(batch)


def with_policy(**options):
    return lambda model: Trainer(model, validation=ValidationPolicy(**options))


def with_plan(**options):
    return lambda model: Trainer(model, execution=ExecutionPlan(**options))


SETS = {
    "sets": {"a": VALIDATION, "b": VALIDATION},
    "a set": {"a": ValidationSet(data=VALIDATION)},
    "a function": {"one": EvaluationFunction(lambda model: 1.0)},
}
ASKED = {
    "functions": (with_policy(functions={"one": lambda model: 1.0}), r"ValidationPolicy\(functions=...\)"),
    "max_lag": (with_policy(max_lag=0), r"ValidationPolicy\(max_lag=...\)"),
    "every_steps": (with_policy(every_steps=3), r"ValidationPolicy\(every_steps=...\)"),
    "jit": (with_plan(jit=True), r"ExecutionPlan\(jit=...\)"),
    "preprocess": (lambda model: Trainer(model, preprocess=lambda x, y: (x, y)), "preprocess"),
    "recorder": (lambda model: Trainer(model, recorder=SpanRecorder()), "recorder"),
    "train_step": (OwnSteps, "train_step of the trainer"),
    "validation_step": (OwnValidation, "validation_step of the trainer"),
    **dict.fromkeys(SETS, (Trainer, "several validation sets")),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.by_default("train_step")
def test_whatever_keras_cannot_do_is_refused_by_name(asked):
    make, words = ASKED[asked]
    model = built(ByBatches)
    given = {"validation_data": SETS[asked]} if asked in SETS else {}
    assert_refused(model, lambda: make(model).fit(X, Y, **given), f"so that {words} would be ignored")
    assert model.ended == 0


def test_all_that_is_asked_for_is_named(tmp_path):
    trainer = Trainer(built(ByBatches), validation=ValidationPolicy(max_lag=2, workers=1))
    words = r"resume and ValidationPolicy\(workers=...\) and ValidationPolicy\(max_lag=...\) would be"
    with pytest.raises(ValueError, match=words):
        trainer.fit(X, Y, resume=tmp_path)


def test_nothing_is_refused_where_nothing_was_asked_for():
    trainer = Trainer(built(ByBatches), validation=ValidationPolicy(), execution=ExecutionPlan())
    trainer.fit(X, Y, validation_data=VALIDATION)
    assert trainer.model.ended == 2
    assert "Own.fit has trained by itself" in trainer.messages[0]


def test_a_library_that_has_replaced_fit_is_refused_by_its_name(tmp_path):
    model = built(keras.Sequential)
    with mock.patch.object(keras.Model, "fit", lambda self, *_, **__: self.train_on_batch(X, Y)):
        assert_refused(
            model,
            lambda: Trainer(model).fit(X, Y, resume=tmp_path / "run"),
            rf"keras.Model.fit of {__name__} trains by itself, .*; put Keras's method back, or leave that",
        )
    assert not (tmp_path / "run").exists()


class Prepares(keras.Sequential):
    """Does to its weights what prepares a training, and lets Keras train."""

    def fit(self, x, y, **arguments):
        self.layers[-1].bias.assign(tf.ones(CLASSES))
        self.set_weights(self.get_weights())
        self.predict(x, verbose=0)
        gradients(self, self.trainable_variables)  # as to look at them
        other = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1)])
        other.compile("sgd", "mse")
        other.fit(x, x[:, :1], verbose=0)
        return super().fit(x, y, **arguments)


class Twice(keras.Sequential):
    def fit(self, x, y, **arguments):
        super().fit(x, y, **arguments)
        return super().fit(x, y, **arguments)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [Prepares, Twice])
def test_a_fit_that_passes_on_what_was_asked_for_is_ours_each_time(kind, tmp_path):
    given = dict(verbose=0, validation_data=VALIDATION, batch_size=16)
    expected = built(kind).fit(X, Y, epochs=3, **given).history
    policy = ValidationPolicy(functions={"one": lambda model: 1.0}, max_lag=2, overlap="always")
    if kind is Prepares:  # to be resumed
        given["resume"] = tmp_path
        Trainer(built(kind), validation=policy).fit(X, Y, epochs=2, **given)
    history = dict(Trainer(built(kind), validation=policy).fit(X, Y, epochs=3, **given).history)
    assert history.pop("val_one") == [1.0] * 3
    assert_same_history(history, expected)


def test_a_second_training_is_no_continuation_of_the_first(tmp_path):
    with pytest.raises(ValueError, match=r"Twice.fit calls keras.Model.fit more than once, and resume"):
        Trainer(built(Twice)).fit(X, Y, verbose=0, resume=tmp_path)


class Alone(keras.Sequential):
    def evaluate(self, x=None, y=None, **arguments):
        return {"loss": 1.0} if arguments.get("return_dict") else 1.0


class PassesOn(keras.Sequential):
    def evaluate(self, x=None, y=None, **arguments):
        return super().evaluate(x, y, **arguments)


class OwnTestFunction(keras.Sequential):
    def make_test_function(self, force=False):
        return super().make_test_function(force)


class Doubles(Trainer):
    def validation_step(self, batch):
        x, y = batch
        return super().validation_step((2 * x, y))


OF_EVALUATE = {
    "preprocess": (lambda model: Trainer(model, preprocess=lambda x, y: (2 * x, y)), "preprocess"),
    "validation_step": (Doubles, "validation_step of the trainer"),
}


@pytest.mark.parametrize("asked", OF_EVALUATE)
def test_an_evaluate_that_evaluates_by_itself_is_refused(asked):
    make, words = OF_EVALUATE[asked]
    with pytest.raises(ValueError, match=f"Alone.evaluate evaluates by itself, .* so that {words} would be"):
        make(built(Alone)).evaluate(X, Y, verbose=0)
    assert with_policy(max_lag=3)(built(Alone)).evaluate(X, Y, verbose=0) == 1.0, "of a fit alone"


@pytest.mark.by_default("preprocess")
@pytest.mark.parametrize("asked", OF_EVALUATE)
def test_an_evaluate_that_passes_on_what_was_asked_for_gives_it(asked):
    expected = built(PassesOn).evaluate(2 * X, Y, verbose=0)
    assert OF_EVALUATE[asked][0](built(PassesOn)).evaluate(X, Y, verbose=0) == pytest.approx(expected)


@pytest.mark.by_default("PassesOn-preprocess")
@pytest.mark.parametrize("asked", OF_EVALUATE)
@pytest.mark.parametrize("kind", [Alone, PassesOn, OwnTestFunction])
def test_a_fit_refuses_what_the_models_validation_would_not_heed(kind, asked):
    make, words = OF_EVALUATE[asked]
    model = built(kind)
    assert_refused(
        model,
        lambda: make(model).fit(X, Y, verbose=0, validation_data=VALIDATION),
        f"{kind.__name__} .*, so that {words} would be ignored in each validation",
    )
    make(model).fit(X, Y, verbose=0)  # without a validation
    if kind is OwnTestFunction:
        with pytest.raises(ValueError, match=words):
            make(model).evaluate(X, Y, verbose=0)
