"""A `fit` or an `evaluate` that is not Keras's: what only a `Trainer` does reaches it, or is refused."""

from unittest import mock

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, linear

X, Y = arrays(48)
VALIDATION = arrays(24, 1)


def built(kind):
    return linear(lambda: keras.layers.Dropout(0.2), kind=kind, optimizer="adam", metrics=["accuracy"])


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


def nothing(model):
    pass


ByBatches = type("ByBatches", (Own,), {"train": by_batches})


def assert_refused(model, call, words):
    """Make a call that says what had no effect, behind what the model has done by itself."""
    model.ended = 0
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("train", [by_batches, nothing])
def test_a_fit_that_trains_by_itself_is_an_error_where_it_was_to_be_resumed(train, tmp_path):
    model = built(type("ByItself", (Own,), {"train": train}))
    resume = tmp_path / "run"
    words = r"Own.fit has trained by itself, .* so that resume had no effect; call super\(\)"
    assert_refused(model, lambda: Trainer(model).fit(X, Y, verbose=0, resume=resume), words)
    assert model.ended == 2, "the model keeps what it has learned"
    assert not resume.exists()


class OwnSteps(Trainer):
    def train_step(self, batch):
        return super().train_step(batch)


class Doubles(Trainer):
    def validation_step(self, batch):
        x, y = batch
        return super().validation_step((2 * x, y))


def with_policy(**options):
    return lambda model: Trainer(model, validation=ValidationPolicy(**options))


ASKED = {
    "functions": (with_policy(functions={"one": lambda model: 1.0}), "functions"),
    "every_steps": (with_policy(every_steps=3), "validations inside epochs"),
    "evaluator": (with_policy(evaluator="run"), "the evaluator"),
    "preprocess": (lambda model: Trainer(model, preprocess=lambda x, y: (2 * x, y)), "preprocess"),
    "train_step": (OwnSteps, "train_step of the trainer"),
    "validation_step": (Doubles, "validation_step of the trainer"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_whatever_keras_cannot_do_is_refused_by_name(asked):
    make, words = ASKED[asked]
    model = built(ByBatches)
    assert_refused(model, lambda: make(model).fit(X, Y, verbose=0), f"so that {words} had no effect")


@pytest.mark.parametrize("given", [{}, {"validation": ValidationPolicy(max_lag=2), "in_memory_bytes": 0}])
def test_nothing_is_refused_where_nothing_was_asked_for(given):
    trainer = Trainer(built(ByBatches), **given)
    trainer.fit(X, Y, validation_data=VALIDATION)
    assert trainer.model.ended == 2
    assert "Own.fit has trained by itself" in trainer.messages[0]


def test_a_library_that_has_replaced_fit_is_refused_by_its_name(tmp_path):
    model = built(keras.Sequential)
    with mock.patch.object(keras.Model, "fit", lambda self, *_, **__: self.train_on_batch(X, Y)):
        assert_refused(
            model,
            lambda: Trainer(model).fit(X, Y, resume=tmp_path / "run"),
            rf"keras.Model.fit of {__name__} has trained by itself, .*; put Keras's method back, or",
        )
    assert not (tmp_path / "run").exists()


def test_a_directory_that_cannot_be_one_is_refused_before_the_models_fit_is_called():
    model = built(ByBatches)
    with pytest.raises(TypeError, match="resume must be a directory"):
        Trainer(model).fit(X, Y, resume=3)
    assert model.ended == 0


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


OF_EVALUATE = {name: ASKED[name] for name in ("preprocess", "validation_step")}


@pytest.mark.parametrize("asked", OF_EVALUATE)
def test_an_evaluate_that_evaluates_by_itself_is_refused(asked):
    make, words = OF_EVALUATE[asked]
    with pytest.raises(ValueError, match=f"Alone.evaluate has evaluated by itself, .* so that {words} had"):
        make(built(Alone)).evaluate(X, Y, verbose=0)
    assert with_policy(max_lag=3)(built(Alone)).evaluate(X, Y, verbose=0) == 1.0, "of a fit alone"


@pytest.mark.by_default("preprocess")
@pytest.mark.parametrize("asked", OF_EVALUATE)
def test_an_evaluate_that_passes_on_what_was_asked_for_gives_it(asked):
    expected = built(PassesOn).evaluate(2 * X, Y, verbose=0)
    assert OF_EVALUATE[asked][0](built(PassesOn)).evaluate(X, Y, verbose=0) == pytest.approx(expected)


@pytest.mark.by_default("PassesOn-preprocess", "PassesOn-validation_step")
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
