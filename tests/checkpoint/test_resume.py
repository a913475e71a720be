"""A `fit` that resumes: nothing is touched before it is accepted, and a history is of one kind."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, ExecutionPlan, Trainer, ValidationPolicy
from overlap_train.errors import CheckpointMismatchError
from tests.killing import Killed, Kills
from tests.networks import FEATURES, arrays, assert_same_history, crossentropy, linear
from tests.pools import pooled

X, Y = arrays(32)
VX, VY = arrays(20, seed=1)


@pooled
def model(metrics="accuracy") -> keras.Model:
    return linear(metrics=metrics.split())


def trainer(made=None, **policy) -> Trainer:
    plan = ExecutionPlan(kernels="keras", jit=False)
    return Trainer(made or model(), execution=plan, validation=ValidationPolicy(**policy))


DEFAULTS = dict(x=X, y=Y, batch_size=16, verbose=0, validation_data=(VX, VY))


def fit(resume, epochs=2, made=None, **arguments):
    return trainer(made).fit(epochs=epochs, resume=resume, **{**DEFAULTS, **arguments})


def epochs_in(path: Path) -> list[str]:
    return [row.split(",")[0] for row in path.read_text().splitlines()[1:]]


def killed_with_log(directory: Path, *others: keras.callbacks.Callback, append=False) -> CheckpointPolicy:
    """Trains five epochs and leaves the checkpoint of the third."""
    policy = CheckpointPolicy(directory=directory / "run", every_epochs=3)
    log = keras.callbacks.CSVLogger(directory / "log.csv", append=append)
    with pytest.raises(Killed):
        fit(policy, epochs=8, callbacks=[log, *others, Kills(epoch=4)])
    log.on_train_end()  # closes the file, which Keras leaves open when a training fails
    return policy


# What a refusal leaves alone.


def test_a_refused_resume_leaves_the_log_as_it_was(tmp_path):
    policy, log = killed_with_log(tmp_path), tmp_path / "log.csv"
    before, directory = log.read_bytes(), sorted(os.listdir(policy.directory))
    made, logger = model("accuracy sparse_top_k_categorical_accuracy"), keras.callbacks.CSVLogger(log)
    initial = made.get_weights()
    with pytest.raises(CheckpointMismatchError):
        fit(policy, epochs=8, callbacks=[logger, Kills(epoch=99)], made=made)
    assert log.read_bytes() == before
    assert not logger.append
    assert sorted(os.listdir(policy.directory)) == directory
    for value, kept in zip(made.get_weights(), initial, strict=True):
        np.testing.assert_array_equal(value, kept)


class Counting(keras.callbacks.Callback):
    """Says what it remembers, and takes it back unless it is told to fail."""

    def __init__(self, fails=None):
        super().__init__()
        self.fails = fails

    def get_state(self):
        return {"count": 1}

    def set_state(self, state):
        if self.fails is not None:
            raise self.fails


@pytest.mark.by_default("an interrupt")
@pytest.mark.parametrize(
    "other", [KeyError("count"), KeyboardInterrupt()], ids=["an error of its own", "an interrupt"]
)
def test_what_is_raised_while_callbacks_are_put_back_leaves_the_log_too(tmp_path, other):
    policy, log = killed_with_log(tmp_path, Counting()), tmp_path / "log.csv"
    before = log.read_bytes()
    refused = keras.callbacks.CSVLogger(log)
    with pytest.raises((KeyError, KeyboardInterrupt)):
        fit(policy, epochs=8, callbacks=[refused, Counting(other), Kills(epoch=99)])
    refused.on_train_end()
    assert log.read_bytes() == before
    assert not refused.append
    fit(policy, epochs=6, callbacks=[keras.callbacks.CSVLogger(log), Counting(), Kills(epoch=99)])
    assert epochs_in(log) == ["0", "1", "2", "3", "4", "5"]


class Averaging(keras.callbacks.Callback):
    """Keeps an average of a vector in a variable."""

    def __init__(self, size=2):
        super().__init__()
        self.average = tf.Variable(np.zeros(size, "float32"))


def test_a_variable_of_another_shape_keeps_its_value_and_is_named(tmp_path):
    fit(tmp_path, epochs=1, callbacks=[Averaging()])
    made, other = trainer(model()), Averaging(3)
    made.fit(**DEFAULTS, epochs=2, callbacks=[other], resume=tmp_path)
    (message,) = [text for text in made.messages if "cannot be restored" in text]
    assert "Averaging.average (it was a variable of (2,) float32, and now it is one of (3,)" in message


@pytest.mark.parametrize("append", [False, True])
def test_an_accepted_resume_writes_each_row_once(tmp_path, append):
    log = tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,1\n1,1\n2,1\n3,1\n")
    earlier = epochs_in(log) if append else []
    policy = killed_with_log(tmp_path, append=append)
    assert epochs_in(log) == [*earlier, "0", "1", "2", "3", "4"]
    callbacks = [keras.callbacks.CSVLogger(log, append=append), Kills(epoch=99)]
    fit(policy, epochs=6, callbacks=callbacks)
    assert epochs_in(log) == [*earlier, "0", "1", "2", "3", "4", "5"]
    assert callbacks[0].append is append


# One history, of one kind.


# What else tells histories apart is in test_fingerprints.py.
OTHER = {
    "rows": ({"x": X[:16], "y": Y[:16]}, "training data.rows is 16 (was "),
    "batches": ({"batch_size": 10}, "training data.batch_size is 10 (was 16)"),
    "shuffle": ({"shuffle": False}, "training data.shuffle is False (was True)"),
    "sets": ({"validation_data": {"one": (VX, VY)}}, "validation data 'one' is new (arrays)"),
    "freq": ({"validation_freq": 2}, "validation data.freq is 2 (was 1)"),
}


class Judges(Trainer):
    def validation_step(self, batch):
        return dict(super().validation_step(batch))


def test_another_history_is_refused(tmp_path):
    fit(tmp_path, epochs=1)
    for changes, part in OTHER.values():
        with pytest.raises(CheckpointMismatchError) as raised:
            fit(tmp_path, **changes)
        assert part in str(raised.value)
        assert "digest" not in str(raised.value)
    with pytest.raises(CheckpointMismatchError, match=r"validation_step is Judges\.valida.* \(was stock\)"):
        Judges(model()).fit(**DEFAULTS, epochs=2, resume=tmp_path)
    assert fit(tmp_path).epoch == [0, 1], "what was refused has spoiled nothing"


@pytest.mark.nightly
def test_another_model_and_layers_that_have_changed_places_are_told(tmp_path):
    def named(first, second, *others, optimizer="sgd"):
        layers = [functools.partial(keras.layers.Dense, FEATURES, name=name) for name in (first, second)]
        return linear(*layers, *others, optimizer=optimizer, metrics=["accuracy"])

    fit(tmp_path, made=named("a", "b"), epochs=1)
    with pytest.raises(CheckpointMismatchError, match="the order and number of all variables is another"):
        fit(tmp_path, made=named("b", "a"))
    momentum = keras.optimizers.SGD(momentum=0.9)
    other = named("a", "b", lambda: keras.layers.Dropout(0.5), optimizer=momentum)
    with pytest.raises(CheckpointMismatchError, match=r"dropout is new \(Dropout\)") as raised:
        fit(tmp_path, made=other)
    assert "momentum" in str(raised.value)
    assert "all variables" not in str(raised.value)


# Other callbacks.


def test_callbacks_that_are_new_and_that_are_missing_are_named(tmp_path):
    fit(tmp_path, epochs=2, callbacks=[keras.callbacks.ReduceLROnPlateau(), Kills(epoch=99)])
    early, made = keras.callbacks.EarlyStopping("loss", patience=9), trainer(model())
    history = made.fit(**DEFAULTS, epochs=4, callbacks=[early], resume=tmp_path)
    assert history.epoch == [0, 1, 2, 3]
    assert early.best == min(history.history["loss"][2:])
    assert "these callbacks are not in the checkpoint and begin now: EarlyStopping" in made.messages
    (missing,) = (text for text in made.messages if "missing" in text)
    assert missing.endswith(": ReduceLROnPlateau, Kills")
    assert not any("configured otherwise" in text for text in made.messages)


def test_a_log_that_is_new_in_a_resumed_training_begins_empty(tmp_path):
    fit(tmp_path / "run", epochs=2)
    (tmp_path / "log.csv").write_text("epoch,loss\n9,9\n")
    fit(tmp_path / "run", epochs=3, callbacks=[keras.callbacks.CSVLogger(tmp_path / "log.csv")])
    assert epochs_in(tmp_path / "log.csv") == ["2"]


# Where it lies.


@pytest.mark.parametrize("as_policy", [False, True])
def test_a_relative_directory_stays_where_it_was_when_fit_began(tmp_path, monkeypatch, as_policy):
    class Mover(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            os.chdir(tmp_path / "b")

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    fit(CheckpointPolicy(directory="run") if as_policy else "run", callbacks=[Mover()])
    assert len(list((tmp_path / "a" / "run").glob("ckpt-*"))) == 2
    assert list((tmp_path / "b").iterdir()) == []


class Compiles(keras.callbacks.Callback):
    """Freezes a layer and trains the rest with an optimizer of its own, once."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.hook = hook

    def on_epoch_begin(self, epoch, logs=None):
        self.act("on_epoch_begin", epoch)

    def on_epoch_end(self, epoch, logs=None):
        self.act("on_epoch_end", epoch)

    def act(self, hook, epoch):
        if hook == self.hook and epoch == 1:
            self.model.layers[0].trainable = False
            self.model.compile(keras.optimizers.Adam(0.05), crossentropy(), metrics=["accuracy"])
            self.model.make_train_function()


@pytest.mark.nightly
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
@pytest.mark.parametrize("last", [1, 3])
@pytest.mark.by_default("1-on_epoch_begin")
def test_behind_a_callback_that_compiles_a_training_begins_before_it(tmp_path, hook, last):
    """What is compiled is in no checkpoint: one from behind it would train on as compiled at first."""

    def made():
        return linear(lambda: keras.layers.Dense(4), metrics=["accuracy"])

    whole = made()
    expected = fit(None, epochs=5, made=whole, callbacks=[Compiles(hook)]).history
    with pytest.raises(Killed):
        fit(tmp_path / "run", epochs=5, made=made(), callbacks=[Compiles(hook), Kills(epoch=last)])
    resumed = made()
    by = trainer(resumed)
    callbacks = [Compiles(hook), Kills(epoch=9)]
    history = by.fit(**DEFAULTS, epochs=5, resume=tmp_path / "run", callbacks=callbacks).history
    assert "resumed after epoch 1" in by.messages
    assert any("a callback has compiled the model" in message for message in by.messages)
    assert_same_history(history, expected)
    for actual, weights in zip(resumed.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(actual, weights, rtol=1e-6)


def test_another_plan_than_that_of_the_checkpoint_is_said(tmp_path):
    for epochs, splits in enumerate((1, 1, 2), start=1):
        by = Trainer(model(), execution=ExecutionPlan(batch_splits=splits, kernels="keras", jit=False))
        by.fit(**DEFAULTS, epochs=epochs, resume=tmp_path)
        said = [text for text in by.messages if text.endswith("where the plan was: no splits, no XLA")]
        assert len(said) == (splits == 2)


class SetsOnTheModel(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.first_loss = logs["loss"]


def test_what_a_callback_has_set_on_the_model_is_named_by_each_run_that_lacks_it(tmp_path):
    for kills in (Kills(epoch=1), Kills(epoch=2)):
        with pytest.raises(Killed):
            fit(tmp_path / "run", epochs=5, callbacks=[SetsOnTheModel(), kills])
    by = trainer()
    by.fit(**DEFAULTS, epochs=5, resume=tmp_path / "run", callbacks=[SetsOnTheModel(), Kills()])
    said = [message for message in by.messages if "first_loss" in message]
    assert said == ["these attributes of the model are in no checkpoint: first_loss; keep them in a callback"]


class CompilesFirst(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.compile("sgd", crossentropy(), metrics=["accuracy"])
        self.model.make_train_function()


def test_what_each_fit_compiles_as_it_begins_is_gone_on_from(tmp_path):
    by = trainer()
    options = dict(batch_size=16, verbose=0, callbacks=[CompilesFirst()])
    by.fit(X, Y, epochs=2, resume=tmp_path / "run", **options)
    by = trainer()
    by.fit(X, Y, epochs=3, resume=tmp_path / "run", **options)
    assert "resumed after epoch 2" in by.messages


class TrainsItself(keras.Sequential):
    """Needs no optimizer."""

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(x) ** 2)
        variables = self.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"own": loss}

    def test_step(self, data):
        return {"own": tf.reduce_mean(self(data[0]) ** 2)}


def test_a_model_without_an_optimizer_goes_on(tmp_path):
    def made():
        return linear(kind=TrainsItself, optimizer=None)

    whole = trainer(made()).fit(X, Y, epochs=3, batch_size=16, verbose=0, validation_data=(VX, VY))
    fit(tmp_path / "run", epochs=2, made=made())
    resumed = fit(tmp_path / "run", epochs=3, made=made())
    assert resumed.epoch == [0, 1, 2]
    assert_same_history(resumed.history, whole.history)


def test_an_eager_training_is_refused(tmp_path):
    own = linear(optimizer="adam", run_eagerly=True)
    with pytest.raises(ValueError, match="runs eagerly; compile it without run_eagerly"):
        fit(tmp_path / "run", made=own)
    assert fit(None, made=own).epoch == [0, 1]


class Noisy(keras.layers.Layer):
    def call(self, x, training=False):
        return x + tf.random.normal(tf.shape(x)) if training else x


class Prints(keras.layers.Layer):
    def call(self, x):
        tf.print("called", output_stream="file:///dev/null")
        return x


@pytest.mark.parametrize(
    ("layer", "resumes", "said"),
    [(Noisy, True, True), (Prints, True, False), (Noisy, False, False)],
    ids=["draws", "prints", "no checkpoints"],
)
def test_what_steps_do_that_no_checkpoint_holds_is_said(tmp_path, layer, resumes, said):
    by = trainer(linear(layer))
    by.fit(X, Y, batch_size=16, verbose=0, resume=tmp_path / "run" if resumes else None)
    told = [message for message in by.messages if "other numbers than an unbroken one" in message]
    assert bool(told) is said
    assert all("draw with keras.random" in message for message in told)
