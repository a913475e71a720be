"""What `keras.Model.fit` promises besides its numbers: when hooks are called, what `compile` decides."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, crossentropy, linear
from tests.pools import pooled
from tests.seeds import set_random_seed
from tests.whole_fits.comparing import AHEAD, IN_STEP, AtEpoch, Rows, assert_as_keras, slices

kc = keras.callbacks
X, Y = arrays(70)
VALIDATION = arrays(33, 1)
WHOLE = dict(epochs=2, verbose=0, shuffle=False, validation_data=VALIDATION)


plain = pooled(linear)


@pooled
def deep():
    return plain(lambda: keras.layers.Dense(5))


def test_the_caps_for_debugging_hold_and_are_told():
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    try:
        model = plain()
        with pytest.warns(UserWarning, match="Limiting") as ours:
            history = Trainer(model).fit(X, Y, batch_size=8, epochs=5, verbose=0)
        with pytest.warns(UserWarning, match="Limiting") as by_keras:
            plain().fit(X, Y, batch_size=8, epochs=5, verbose=0)
        places = [[(w.filename, w.lineno) for w in s if "Lim" in str(w.message)] for s in (ours, by_keras)]
        assert places[0] == places[1]
        assert history.epoch == [0, 1]
        assert int(model.optimizer.iterations) == 6
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)


def test_trainable_without_compile_changes_nothing():
    def run(trained):
        model, weights = getattr(trained, "model", trained), []
        for compiled in (False, False, True):
            if compiled:
                model.compile("sgd", crossentropy())
            trained.fit(X, Y, epochs=1, verbose=0, shuffle=False)
            model.layers[0].trainable = False
            weights.append(model.layers[0].kernel.numpy())
        assert not np.allclose(weights[0], weights[1])
        np.testing.assert_array_equal(weights[1], weights[2])

    assert_as_keras(run, build=deep)


def compiles(callback, epoch):
    if epoch == 1:
        callback.model.compile(keras.optimizers.SGD(0.5), crossentropy())


@pytest.mark.parametrize("policy", [IN_STEP, AHEAD], ids=["in step", "ahead"])
@pytest.mark.by_default("ahead")
def test_compile_in_a_callback_is_the_type_error_of_keras(policy):
    given = dict(epochs=4, verbose=0, validation_data=VALIDATION, callbacks=[AtEpoch(compiles)])
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        plain().fit(X, Y, **given)
    with pytest.raises(TypeError, match="'NoneType' object is not callable: a callback has compiled"):
        Trainer(plain(), validation=policy).fit(X, Y, **given)


@pytest.mark.parametrize(("lag", "workers"), [(0, 1), (2, 3)])
@pytest.mark.by_default("2-3")
def test_a_generator_gives_each_validation_its_first_batches_and_those_that_follow(lag, workers):
    """Keras loses what it has fetched ahead of these, how much differs from run to run."""

    def numbered():
        for number in range(1000):
            batch = np.full((4, 1), number, "float32")
            yield batch, batch

    def number(y, p):
        return keras.ops.mean(y, -1)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=[number])
    policy = ValidationPolicy(max_lag=lag, overlap="always", workers=workers)
    history = Trainer(model, validation=policy).fit(
        numbered(), epochs=4, steps_per_epoch=3, validation_data=numbered(), validation_steps=6, verbose=0
    )
    behind = [(2, 3, 4, 5), (6, 7, 8, 9), (10, 11, 12, 13), (14, 15, 16, 17)]
    np.testing.assert_allclose(history.history["val_number"], [(0 + 1 + sum(b)) / 6 for b in behind])


def counted(most):
    """Yields so many batches; without end if None."""
    for number in range(1000 if most is None else most):
        batch = np.full((4, 12), number + 1, "float32")
        yield batch, np.full(4, number % 4)


@pytest.mark.parametrize(
    ("batches", "options"),
    [
        (5, {}),
        (5, {"validation_freq": 2}),
        (5, {"validation_steps": 2}),
        (5, {"validation_steps": 5}),
        (1, {}),
        (1, {"validation_steps": 3}),
        (2, {}),
        (None, {"validation_steps": 1}),
        (None, {"validation_steps": 2}),
    ],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("1-options4", "None-options8")
def test_a_generator_that_ends_is_validated_on_as_by_keras(batches, options):
    """On the batches at which Keras has looked, in each validation behind its end."""

    def run(trained):
        set_random_seed(3)
        return trained.fit(X, Y, epochs=4, verbose=0, validation_data=counted(batches), **options)

    assert_as_keras(run, build=plain)


def test_validation_data_is_told_of_its_end_when_a_validation_ends():
    def run(trained):
        rows = Rows(X[:24], Y[:24])
        note = kc.LambdaCallback(on_epoch_end=lambda epoch, logs: rows.told.append(f"epoch {epoch} ends"))
        trained.fit(X, Y, epochs=2, verbose=0, validation_data=rows, callbacks=[note])
        return rows.told

    assert_as_keras(run, IN_STEP, build=plain)


def test_an_optimizer_that_no_step_uses_stays_unbuilt():
    from tests.real_code import two_optimizers

    trainer = assert_as_keras(lambda trained: trained.fit(X, Y, **WHOLE), build=two_optimizers)
    assert not trainer.model.optimizer.built


class Scaled(keras.Sequential):
    """Prepares its data in a `fit` and an `evaluate` of its own, as keras-hub's tasks do."""

    def fit(self, x, y, validation_data=None, **kwargs):
        if validation_data is not None:
            validation_data = (validation_data[0] / 100, validation_data[1])
        return super().fit(x / 100, y, validation_data=validation_data, **kwargs)

    def evaluate(self, x=None, y=None, **kwargs):
        if not kwargs.get("_use_cached_eval_dataset"):
            x = x / 100
        return super().evaluate(x, y, **kwargs)


def scaled(kind=Scaled):
    return linear(kind=kind)


def test_a_fit_and_an_evaluate_of_the_models_own_have_their_effect():
    def run(trained):
        trained.fit(X * 100, Y, **WHOLE | {"validation_data": (VALIDATION[0] * 100, VALIDATION[1])})
        return trained.evaluate(X * 100, Y, verbose=0)

    trainer = assert_as_keras(run, ValidationPolicy(), build=scaled)
    assert any("Scaled has an evaluate of its own" in message for message in trainer.messages)
    assert "fit" not in vars(keras.Model), "Keras's own class is left as it was"


@pytest.mark.parametrize("dtype", ["U", "O", "S"])
@pytest.mark.by_default("O", "S")
def test_strings_are_data_like_any_other(dtype):
    words = np.array(["a b", "c", "a c", "b"] * 8).astype(dtype)

    def build():
        set_random_seed(4)
        vectorize = keras.layers.TextVectorization(max_tokens=8, output_sequence_length=3)
        vectorize.adapt(["a b c"])
        layers = [vectorize, keras.layers.Embedding(8, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((), dtype="string"), *layers])
        model.compile("sgd", crossentropy())
        return model

    dataset = slices(words.astype("S"), np.arange(32) % 2).batch(8)
    assert_as_keras(lambda trained: trained.fit(dataset, epochs=2, verbose=0, shuffle=False), build=build)


def test_a_model_of_keras_2_is_refused_by_name():
    kind = type("Model", (), {"__module__": "tf_keras.src.engine.training"})
    with pytest.raises(TypeError, match="tf_keras, that is Keras 2"):
        Trainer(kind())


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("None-static-whole", "2-static-streamed")
@pytest.mark.parametrize(
    "policy", [{}, {"keep_bytes": 0}, {"max_lag": 0}], ids=["whole", "streamed", "in step"]
)
@pytest.mark.parametrize("batches", ["static", "any"])
@pytest.mark.parametrize("steps", [None, 2, 9])
def test_data_of_unknown_size_is_counted_as_far_as_by_keras(batches, policy, steps):
    """Keras up to 3.15 counts a batch too many where the data ends (keras#23084), also into averages."""
    rows = slices(X, Y).filter(lambda x, y: True)
    dataset = rows.batch(16, drop_remainder=batches == "static")

    def run(trained):
        trained.fit(dataset, epochs=2, verbose=0, validation_data=dataset, validation_steps=steps)
        return trained.evaluate(dataset, verbose=0)

    assert_as_keras(run, ValidationPolicy(**policy), build=plain)


# `validation_data` may be x alone, in every form, whose truth nobody may ask for.

ROWS = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


class Errors(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(4)

    def call(self, x):
        x = x["a"] if isinstance(x, dict) else x
        outputs = self.head(x)
        self.add_loss(keras.ops.mean((x - outputs) ** 2))
        return outputs


@pooled
def unsupervised():
    set_random_seed(0)
    model = Errors()
    model(ROWS)
    model.compile("sgd")
    return model


ALONE = {"array": ROWS, "tensor": tf.constant(ROWS), "a tuple of one": (ROWS,), "inputs by name": {"a": ROWS}}


@pytest.mark.by_default("inputs by name")
@pytest.mark.parametrize("name", ALONE)
def test_validation_data_may_be_x_alone(name):
    data = ALONE[name]
    x = data if isinstance(data, dict) else ROWS
    assert_as_keras(
        lambda trained: trained.fit(x, epochs=2, verbose=0, validation_data=data), build=unsupervised
    )
