"""Copies of a model for evaluation functions, with the attributes of their epoch; a clone in their place."""

import threading

import keras
import numpy as np
import pytest

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy
from overlap_train._validation.private_model import Attributes
from overlap_train.errors import ValidationWorkerError
from tests.networks import CLASSES, FEATURES, crossentropy, linear, subclassed
from tests.pools import sequential
from tests.validation.calling import ROUNDING, X, Y, expected_values, fit, in_step, kl, mean_output, simple


class Configured(keras.Model):
    """A subclassed model that its configuration makes again, but for what is set later."""

    def __init__(self, units, **arguments):
        super().__init__(**arguments)
        self.units, self.temperature = units, 1.0
        self.hidden, self.head = kl.Dense(units, activation=squash), kl.Dense(CLASSES)

    def call(self, x, training=False):
        return self.head(self.hidden(x)) / self.temperature

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def squash(x):
    return keras.ops.tanh(x)


def configured():
    keras.utils.set_random_seed(5)
    model = Configured(6)
    model.temperature, model.tokenizer = 3.0, object()
    model.compile("adam", lambda y, p: crossentropy()(y, p), metrics=["accuracy"])
    return model


def adapted():
    norm = kl.Normalization()
    norm.adapt(X)
    return linear(lambda: norm, kl.BatchNormalization, optimizer="adam")


def with_vocabulary():
    keras.utils.set_random_seed(5)
    lookup = kl.IntegerLookup()
    lookup.adapt(np.array([[3, 1, 1], [0, 3, 3]]))
    inputs = keras.Input((FEATURES,))
    words = lookup(keras.ops.cast(inputs, "int64"))
    outputs = kl.Dense(CLASSES)(kl.Flatten()(kl.Embedding(8, 2)(words)))
    model = keras.Model(inputs, outputs)
    model.compile("adam", crossentropy())
    return model


@pytest.mark.nightly
@pytest.mark.by_default("sequential")
@pytest.mark.parametrize("build", [configured, adapted, with_vocabulary, sequential])
def test_what_is_set_or_adapted_later_is_part_of_the_copy(build):
    trainer = fit(build(), {"mean": mean_output}, max_lag=2)
    assert not in_step(trainer)
    np.testing.assert_allclose(
        trainer.model.history.history["val_mean"], expected_values(build, mean_output), **ROUNDING
    )


@pytest.mark.nightly
def test_an_object_attached_to_the_model_is_found_on_the_copy():
    model = configured()
    trainer = fit(model, {"same": lambda copy: copy.tokenizer is model.tokenizer and copy is not model})
    assert trainer.model.history.history["val_same"] == [1.0, 1.0, 1.0]


def reads_live_weights():
    """A layer's function reads the variables of another layer, past every configuration."""
    keras.utils.set_random_seed(5)
    first = kl.Dense(FEATURES)
    first.build((None, FEATURES))

    def tied(x):
        return keras.ops.matmul(x, keras.ops.transpose(first.kernel))

    return linear(lambda: first, lambda: kl.Activation(tied))


class Listed(Configured):
    """Computes with what its configuration does not hold."""

    def __init__(self, units, **arguments):
        super().__init__(units, **arguments)
        self._scales = [1.0]

    def call(self, x, training=False):
        return super().call(x) * self._scales[0]


def listed():
    keras.utils.set_random_seed(5)
    model = Listed(6)
    model._scales[0] = 2.0
    model.compile("adam", crossentropy())
    return model


def bound():
    made = model()
    made.rule = made.call
    return made


def with_closure():
    from tests.real_code import closure_loss

    return closure_loss()


@pytest.mark.by_default("reads_live_weights-outside the model")
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (subclassed, "is not made anew by its configuration"),
        (reads_live_weights, "outside the model"),
        (listed, "computes something else"),
        (bound, "uses the model itself"),
        (with_closure, "outside the model"),
    ],
)
def test_a_model_without_a_faithful_copy_is_evaluated_in_step_and_says_why(build, reason):
    seen = []

    def mean(model):
        seen.append(model)
        return mean_output(model)

    trainer = fit(build(), {"mean": mean}, max_lag=2)
    assert all(model is trainer.model for model in seen)
    (said,) = in_step(trainer)
    assert reason in said
    assert "clone=" in said
    np.testing.assert_allclose(
        trainer.model.history.history["val_mean"], expected_values(build, mean_output), **ROUNDING
    )


@pytest.mark.parametrize(
    ("clone", "error", "message"),
    [
        (lambda: None, TypeError, "clone must return a Keras model"),
        (lambda: keras.Sequential([keras.Input((FEATURES,)), kl.Dense(2)]), ValueError, "where the model"),
        (lambda: keras.Sequential([keras.Input((FEATURES,)), kl.Flatten()]), ValueError, "0 variables"),
        (
            lambda: keras.Sequential([keras.Input((FEATURES,)), kl.Dense(CLASSES, "relu")]),
            ValueError,
            "something else",
        ),
    ],
)
def test_a_clone_that_is_none_is_refused_before_anything_starts(clone, error, message):
    with pytest.raises(error, match=message):
        fit(simple(), {"mean": EvaluationFunction(mean_output, clone=clone)})


class Scaled(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.scale, self.names, self._hidden = 1.0, ["a"], 5

    def call(self, x):
        return x


def model():
    keras.utils.set_random_seed(5)
    made = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES), Scaled()])
    made.threshold, made.table, made.lock = 0.5, np.zeros(2), threading.Lock()
    made.compile("sgd", crossentropy())
    return made


def test_a_copy_keeps_its_own_layers_and_variables():
    own, copy = model(), model()
    own.head, own.parts, own.counter = own.layers[0], [own.layers[0]], keras.Variable(1.0)
    names = set().union(*Attributes.of(own).values)
    assert not names & {"head", "parts", "counter", "optimizer", "history", "stop_training"}
    Attributes.of(own).give(copy)
    assert copy.layers[0] is not own.layers[0]


def test_a_callback_that_sets_such_a_function_ends_the_training():
    class Binds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.rule = self.model.call

    with pytest.raises(ValidationWorkerError, match="'rule' that was set on it uses the model itself"):
        fit(model(), {"f": mean_output}, callbacks=[Binds()])


class Sets(keras.callbacks.Callback):
    """Sets attributes of each kind in one of its hooks."""

    overlap_safe = True

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self._set)

    def _set(self, epoch, logs=None):
        self.model.layers[0].activation = (squash, keras.activations.relu)[epoch % 2]
        self.model.rule = lambda: epoch
        self.model.threshold += 1.0
        self.model.table[0] = epoch
        self.model.layers[-1].names.append(str(epoch))
        self.model.layers[-1]._hidden += 1
        self.model.layers[-1].rule = self.model.rule
        self.model.layers[0].trainable = epoch % 2 == 0
        if epoch == 1:
            self.model.later = 100.0
        elif epoch == 2:
            del self.model.later


def look(of):
    activation, rule = of.layers[0].activation, getattr(of, "rule", lambda: -1)
    named = len(of.layers[-1].names) + 1000 * len(activation.__name__) + 10000 * rule()
    layers = 0.5 * of.layers[-1]._hidden + hasattr(of.layers[-1], "rule") + 1e6 * len(of.trainable_weights)
    return of.threshold + 10 * of.table[0] + named + getattr(of, "later", 0.0) + layers


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end", "on_train_batch_end"])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.by_default("1-on_epoch_begin")
def test_a_function_sees_the_model_as_a_callback_behind_the_epoch(hook, lag):
    expected = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            expected.append(look(self.model))

    call = dict(batch_size=16, epochs=4, verbose=0)
    model().fit(X, Y, callbacks=[Looks(), Sets(hook)], **call)
    policy = ValidationPolicy(functions={"f": look}, max_lag=lag, overlap="always")
    sets = Sets(hook)
    if hook != "on_epoch_end":
        del type(sets).overlap_safe
    try:
        trainer = Trainer(model(), validation=policy)
        history = trainer.fit(X, Y, callbacks=[sets], **call)
    finally:
        Sets.overlap_safe = True
    assert history.history["val_f"] == expected
