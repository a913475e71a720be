"""What a checkpoint holds comes out as it went in, or is refused."""

from __future__ import annotations

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from overlap_train._checkpoint import container, content
from overlap_train._data.cursor import CursorState
from overlap_train._inspection.traced import TracedFunction
from overlap_train._snapshot import ModelState, StateVariable
from tests.killing import Killed, Kills
from tests.networks import arrays, assert_same_history, linear
from tests.pools import pooled
from tests.seeds import set_random_seed


@pytest.fixture(scope="module")
def state():
    model = linear()
    model.optimizer.build(model.trainable_variables)
    return ModelState(model)


def through_file(state):
    """Returns a checkpoint of the present values as it comes out of its file."""
    point = content.StartPoint(1, 10, False, {}, CursorState(1, 2, False))
    python = {"files": (), "configuration": {}, "callbacks": []}
    pieces = container.encode(content.as_checkpoint(point, state.read(), python, {}))
    return content.take_apart(container.decode(b"".join(pieces)), state, lambda state, configuration: None)


def captured(value, dtype, **options):
    """Returns a state with a variable outside the model."""
    variable = tf.Variable(tf.cast(value, dtype) if dtype != "string" else value, **options)
    trace = TracedFunction(lambda: variable.read_value())
    return ModelState(linear(optimizer=None), trace.variables), variable


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "bool"])
@pytest.mark.parametrize("value", [1.0, [1.0, 0.0], [[1.0]], []], ids=str)
def test_values_of_any_number_come_back_whatever_their_shape(dtype, value):
    state, variable = captured(value, dtype)
    content.require_storable(state.variables)
    assert dtype in {kind.name for _, kind in content.specs_of(state)}
    saved = through_file(state)
    before = variable.numpy()
    variable.assign(tf.cast(tf.zeros_like(value), dtype))
    state.restore(saved.values)
    assert variable.dtype == dtype
    np.testing.assert_array_equal(variable.numpy().astype("float32"), before.astype("float32"))


@pytest.mark.parametrize("dtype", ["string", "qint8"])
def test_what_is_no_number_is_refused_by_name(dtype):
    state = [StateVariable("text", (None,), tf.as_dtype(dtype), tf.TensorShape(()))]
    with pytest.raises(ValueError, match=f"the variable 'text', which holds values of the type {dtype}"):
        content.require_storable(state)


@pytest.mark.parametrize("shape", [[None], None], ids=str)
def test_a_variable_with_an_open_shape_has_been_of_another_size(shape):
    state, variable = captured([1.0], "float32", shape=tf.TensorShape(shape))
    specs = content.specs_of(state)
    variable.assign([1.0, 2.0, 3.0])
    saved = through_file(state)
    variable.assign([1.0])
    assert content.specs_of(state) == specs
    state.restore(saved.values)
    assert variable.numpy().tolist() == [1.0, 2.0, 3.0]


def test_logs_are_what_json_has():
    plain = {"steps": 3, "flag": True, "none": None, "text": "a"}
    numbers = {"loss": np.float32(2), "tensor": tf.constant(2.0), "small": tf.constant(2.0, tf.bfloat16)}
    others = {"array": np.zeros(2), "object": object()}
    assert content.plain_logs(plain | numbers | others) == plain | dict.fromkeys(numbers, 2.0)


X, Y = arrays(40)


@pooled
def model(rate=0.05, momentum=0.9) -> keras.Model:
    return linear(optimizer=keras.optimizers.SGD(rate, momentum=momentum))


def fit(resume, callback, *, epochs=6, last=None, made=None, policy=None, **options):
    set_random_seed(1)
    trainer = Trainer(made or model(), validation=policy or ValidationPolicy())
    callbacks = [callback, Kills(epoch=last)]
    call = dict(batch_size=8, verbose=0, validation_data=(X, Y), callbacks=callbacks, resume=resume)
    trainer.fit(X, Y, epochs=epochs, **{**call, **options})
    return trainer


class Draws(keras.callbacks.Callback):
    """Jitters the learning rate with the numbers of everybody's generators."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_train_begin(self, logs=None):
        keras.utils.set_random_seed(4)  # whatever has been traced, which draws seeds

    def on_epoch_end(self, epoch, logs=None):
        self.drawn += [np.random.rand(), random.random(), float(tf.random.uniform(()))]
        self.drawn.append(float(keras.random.uniform(())))
        self.model.optimizer.learning_rate = 0.01 + 0.01 * self.drawn[-2]


@pytest.mark.nightly
def test_who_draws_from_everybodys_generators_gets_the_numbers_of_the_unbroken_run(tmp_path):
    first, second = Draws(), Draws()
    unbroken = fit(tmp_path / "whole", first)
    with pytest.raises(Killed):
        fit(tmp_path / "broken", Draws(), last=3)
    resumed = fit(tmp_path / "broken", second)
    assert second.drawn == first.drawn
    assert len(set(first.drawn)) == len(first.drawn)
    assert_same_history(resumed.model.history.history, unbroken.model.history.history)


class Listens(keras.callbacks.Callback):
    overlap_safe = True

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_step_validation(self, step, logs):
        self.steps.append((step, logs["val_loss"]))


@pytest.mark.nightly
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.by_default("1")
def test_validations_inside_epochs_are_those_of_the_unbroken_run(tmp_path, lag):
    policy = ValidationPolicy(every_steps=2, max_lag=lag, overlap="always")
    unbroken, first = fit(None, each := Listens(), policy=policy), each
    broken = CheckpointPolicy(directory=tmp_path, every_steps=3)
    with pytest.raises(Killed):
        fit(broken, Listens(), policy=policy, last=2)
    resumed = fit(broken, second := Listens(), policy=policy)
    assert [step for step, _ in first.steps] == list(range(2, 31, 2))
    assert [step for step, _ in second.steps] == [step for step, _ in first.steps]
    np.testing.assert_allclose(second.steps, first.steps, rtol=1e-6)
    since = [(each.epoch, each.step) for each in resumed.step_validations]
    assert since == [(each.epoch, each.step) for each in unbroken.step_validations][-len(since) :]


def changed(trainer):
    return [text for text in trainer.messages if "configured otherwise" in text]


def test_other_settings_are_said_in_one_message_and_those_that_callbacks_changed_are_not(tmp_path):
    def halves():
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)

    fit(tmp_path, halves(), epochs=2)
    same = fit(tmp_path, halves(), epochs=3)
    assert changed(same) == []
    assert changed(fit(tmp_path, halves(), epochs=4, made=same.model)) == []  # in the same process
    other = model(rate=0.5, momentum=0.25)
    (message,) = changed(fit(tmp_path, halves(), epochs=5, made=other, steps_per_epoch=5))
    assert message == (
        "this training is configured otherwise than that of the checkpoint: optimizer.learning_rate stays "
        "0.003125, as in the checkpoint (given: 0.5); optimizer.momentum is 0.25 (was 0.9)"
    )
