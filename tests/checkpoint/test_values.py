"""Values go into a checkpoint as arrays and come back, for where it stands and for epochs that wait."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._checkpoint import container
from overlap_train._checkpoint.container import CheckpointState
from overlap_train._checkpoint.content import (
    Undelivered,
    are_logs,
    check_values,
    pack_undelivered,
    pack_values,
    plain_logs,
    require_storable,
    specs_of,
    stored_values,
    undelivered,
)
from overlap_train._copies.values import ObjectValue
from overlap_train._data.cursor import CursorState
from overlap_train._inspection.traced import TracedFunction
from overlap_train._snapshot import ModelState, Snapshot, StateVariable
from overlap_train.errors import CheckpointCorruptError


@pytest.fixture(scope="module")
def state():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    return ModelState(model)


def waiting(state, epoch, **logs):
    position = CursorState(epoch + 1, 2, True, epoch, True, 2, {"marked": epoch, "seeds": [1, 2]})
    return Undelivered(Snapshot(epoch, 10 * epoch, state.read(), position), logs)


def test_values_come_back_as_they_were(state):
    arrays = pack_values(state.read())
    check_values(arrays, specs_of(state))
    back = stored_values(state, arrays)
    for one, other in zip(back.flat(), state.read().flat(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert len(back.trainable) == len(state.read().trainable)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda arrays: arrays.pop("variables/0"), "its variable 0 is missing"),
        (
            lambda arrays: arrays.update({"variables/0": np.zeros((3, 1), "float32")}),
            r"of shape \(3, 1\) and type float32",
        ),
        (lambda arrays: arrays.update({"variables/0": np.zeros((2, 1), "float64")}), "and type float64"),
    ],
)
def test_values_that_do_not_fit_are_refused(state, change, found):
    arrays = pack_values(state.read())
    change(arrays)
    with pytest.raises(CheckpointCorruptError, match=found):
        check_values(arrays, specs_of(state))


def captured(value, dtype, **options):
    """Returns a state with a variable outside the model."""
    variable = tf.Variable(tf.cast(value, dtype) if dtype != "string" else value, **options)
    trace = TracedFunction(lambda: variable.read_value())
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=None, loss="mse")
    return ModelState(model, trace.variables), variable


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "bool", "uint8"])
@pytest.mark.parametrize("value", [1.0, [1.0, 0.0], [[1.0]], []], ids=str)
def test_values_of_any_number_come_back_whatever_their_shape(dtype, value):
    state, variable = captured(value, dtype)
    arrays = pack_values(state.read())
    check_values(arrays, specs_of(state))
    require_storable(state.variables)
    container.encode(CheckpointState(0, 0, arrays))
    before = variable.numpy()
    variable.assign(tf.cast(tf.zeros_like(value), dtype))
    state.restore(stored_values(state, arrays))
    assert variable.dtype == dtype
    np.testing.assert_array_equal(variable.numpy().astype("float32"), before.astype("float32"))


@pytest.mark.parametrize("dtype", ["string", "qint8"])
def test_what_is_no_number_is_refused_by_name(dtype):
    state = [StateVariable("text", (None,), tf.as_dtype(dtype), tf.TensorShape(()))]
    with pytest.raises(ValueError, match=f"the variable 'text', which holds values of the type {dtype}"):
        require_storable(state)


@pytest.mark.parametrize("shape", [[None], None], ids=str)
def test_a_variable_with_an_open_shape_has_been_of_another_size(shape):
    state, variable = captured([1.0], "float32", shape=tf.TensorShape(shape))
    specs = specs_of(state)
    variable.assign([1.0, 2.0, 3.0])
    arrays = pack_values(state.read())
    variable.assign([1.0])
    assert specs_of(state) == specs
    check_values(arrays, specs)
    state.restore(stored_values(state, arrays))
    assert variable.numpy().tolist() == [1.0, 2.0, 3.0]
    place = f"variables/{len(specs) - 1}"
    if shape is not None:
        with pytest.raises(CheckpointCorruptError, match=r"shape \(1, 1\) .* one of shape \(None,\)"):
            check_values(arrays | {place: np.ones((1, 1), "float32")}, specs)


def test_epochs_that_wait_come_back_with_logs_and_position(state):
    epochs = [waiting(state, 3, loss=0.5, nested={"a": 1.0}), waiting(state, 4, loss=np.float32(0.25))]
    arrays, described = pack_undelivered(epochs)
    back = undelivered(arrays, described, state)
    assert [(each.snapshot.epoch, each.snapshot.step) for each in back] == [(3, 30), (4, 40)]
    assert back[0].logs == {"loss": 0.5, "nested": {"a": 1.0}}
    for one, other in zip(back, epochs, strict=True):
        assert one.snapshot.position == other.snapshot.position
        assert one.snapshot.position.data == other.snapshot.position.data
    assert undelivered({}, [], state) == ()


def test_parts_of_an_epoch_that_do_not_fit_together_are_refused(state):
    arrays, described = pack_undelivered([waiting(state, 3, loss=0.5)])
    with pytest.raises(CheckpointCorruptError, match="its epoch 3 that waits has no logs"):
        undelivered(arrays, [{**described[0], "parts": {"dict": []}}], state)
    with pytest.raises(CheckpointCorruptError, match="its variable 0 is missing"):
        undelivered({}, described, state)


@pytest.mark.parametrize(
    ("logs", "are"),
    [
        ({"loss": 0.5, "n": 3, "flag": True, "none": None, "text": "a", "": [1, (2.0,)]}, True),
        ({"a": np.float32(1), "b": np.arange(3.0), "c": tf.constant(1.0), "d": {"e": 1.0}}, True),
        ({"a": tf.constant(1.0, "bfloat16"), "b": tf.constant(1.0, "bfloat16").numpy()}, True),
        ({1: 2}, False),
        ({None: None}, False),
        ({"d": {1: 2}}, False),
        ({"loss": 10**5000}, False),
        ({"loss": range(2**60)}, False),
        ({"loss": {1}}, False),
        ({"loss": b"a"}, False),
        ({"loss": np.array("a")}, False),
        ({"loss": ObjectValue("Mark")}, False),
        ({"loss": [[[[[[[[[1]]]]]]]]]}, False),
        ([1], False),
        (None, False),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_logs_that_wait_are_numbers_by_name(state, logs, are):
    assert are_logs(logs) == are


@pytest.mark.parametrize(
    "logs", [{"dict": [[1, 2]]}, {"dict": [[None, None]]}, {"dict": [["a", {"set": []}]]}]
)
def test_an_epoch_that_waits_with_other_logs_is_refused(state, logs):
    arrays, described = pack_undelivered([waiting(state, 3, loss=0.5)])
    described[0]["parts"]["dict"][0] = ["logs", logs]
    with pytest.raises(CheckpointCorruptError, match="its epoch 3 that waits has no logs"):
        undelivered(arrays, described, state)


def test_logs_are_what_json_has():
    logs = {
        "loss": np.float32(0.5),
        "steps": 3,
        "flag": True,
        "none": None,
        "text": "a",
        "tensor": tf.constant(2.0),
        "small": tf.constant(2.0, tf.bfloat16),
        "array": np.zeros(2),
        "object": object(),
    }
    assert plain_logs(logs) == {
        "loss": 0.5,
        "steps": 3,
        "flag": True,
        "none": None,
        "text": "a",
        "tensor": 2.0,
        "small": 2.0,
    }
