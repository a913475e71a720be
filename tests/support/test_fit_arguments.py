"""Arguments of `fit` and `evaluate` are checked, and refusals are known as such."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from overlap_train._support import fit_arguments
from overlap_train._support.fit_arguments import Refusing, is_refusal_of
from tests.networks import arrays
from tests.pools import sequential


def test_what_keras_takes_for_nothing_is_nothing():
    assert fit_arguments.FitNumbers(epochs=0).epochs == 0
    assert fit_arguments.FitNumbers(validation_split=None).validation_split == 0.0
    x, y = arrays(8)
    sequential().fit(x, y, validation_split=None, verbose=0)  # as under Keras


def test_epochs_to_validate_may_be_a_range_of_any_length():
    validated = fit_arguments.epoch_selector(range(2, 10**12, 2))
    assert [validated(epoch) for epoch in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("value", [(1, 3), range(2), np.arange(2), np.int64(2), 2.0, "2", {1}, None])
def test_keras_takes_a_list_or_an_integer_to_say_which_epochs_are_validated(value):
    with pytest.raises(ValueError, match="Expected `validation_freq` to be a list or int") as info:
        fit_arguments.check_frequency(value)
    with pytest.raises(ValueError, match="list or int") as expected:
        keras.Sequential()._should_eval(0, value)
    assert str(info.value) == str(expected.value)
    fit_arguments.check_frequency([1, 3])
    for meant in (0, [1, 0]):  # what cannot be meant is refused in other words
        with pytest.raises(ValueError, match="validation_freq must be at least 1; got 0"):
            fit_arguments.check_frequency(meant)


COUNTS = (
    *("epochs", "initial_epoch", "batch_size", "validation_batch_size"),
    *("steps_per_epoch", "validation_steps"),
)


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_comes_back_as_an_integer_of_python(name):
    for form in (np.array, np.uint8, tf.constant):
        value = getattr(fit_arguments.FitNumbers(**{name: form(3)}), name)
        assert (type(value), value) == (int, 3)
    for value in (2.0, "2", np.array([2]), tf.constant(2.5), True):
        with pytest.raises(TypeError, match=f"{name} must be an integer; got"):
            fit_arguments.FitNumbers(**{name: value})


@pytest.mark.parametrize(
    ("name", "values", "expected", "refused", "message"),
    [
        (
            *("validation_split", [np.array(0.25), np.float16(0.25)], 0.25),
            *([1.5, -0.1], "validation_split must be at least 0 and below 1"),
        ),
        ("verbose", [2, 2.0, np.array(2)], 2, [3, None], "verbose must be 'auto', 0, 1 or 2"),
        (
            *("shuffle", [1, np.array(1), np.True_], True),
            *([2, "rows", None, np.array([1])], "shuffle must be True, False or 'batch'"),
        ),
    ],
    ids=["validation_split", "verbose", "shuffle"],
)
def test_other_numbers_come_back_as_those_of_python(name, values, expected, refused, message):
    for value in values:
        result = getattr(fit_arguments.FitNumbers(**{name: value}), name)
        assert (type(result), result) == (type(expected), expected)
    for value in refused:
        with pytest.raises(ValueError, match=message):
            fit_arguments.FitNumbers(**{name: value})
    assert fit_arguments.FitNumbers(shuffle="batch").shuffle == "batch"


@pytest.mark.parametrize("kind", [TypeError, ValueError, RuntimeError])
def test_bad_arguments_are_refused_and_nothing_else_is(kind):
    one, other = object(), object()
    with pytest.raises(kind) as info, Refusing(one):
        raise kind
    assert is_refusal_of(one, info.value) == (kind is not RuntimeError)
    assert not is_refusal_of(other, info.value)
    assert not is_refusal_of(one, ValueError())


def test_what_a_trainer_refuses_can_be_sent_to_another_process():
    x, y = arrays(8)
    trainer = Trainer(sequential())
    for call, arguments in (
        (trainer.fit, {"epochs": -1}),
        (trainer.fit, {"epochs": "two"}),
        (trainer.fit, {"sample_weight": y[:3]}),
        (trainer.evaluate, {"steps": 0}),
    ):
        with pytest.raises((TypeError, ValueError)) as info:
            call(x, y, **arguments)
        for clone in (pickle.loads(pickle.dumps(info.value)), copy.deepcopy(info.value)):
            assert (type(clone), str(clone)) == (type(info.value), str(info.value))
