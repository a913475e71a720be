"""Arguments of `fit` and `evaluate` are checked, and refusals are known as such."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer
from overlap_train._support import fit_arguments
from overlap_train._support.fit_arguments import is_refusal_of, refusals
from tests.networks import arrays
from tests.pools import sequential


def test_fit_takes_no_epoch_at_all_and_the_scalars_of_numpy():
    fit_arguments.FitNumbers(epochs=0)
    fit_arguments.FitNumbers(
        epochs=np.int64(2),
        batch_size=np.int32(8),
        validation_split=np.float32(0.25),
        shuffle=np.True_,
        verbose=np.int64(0),
    )
    fit_arguments.FitNumbers(shuffle=1, verbose=True)
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
@pytest.mark.parametrize("form", [np.array, np.uint8, tf.constant, lambda n: tf.constant(n, tf.int64)])
def test_a_count_comes_back_as_an_integer_of_python(name, form):
    value = getattr(fit_arguments.FitNumbers(**{name: form(3)}), name)
    assert (type(value), value) == (int, 3)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(
    "value", [2.0, "2", np.array([2]), tf.constant([2]), tf.constant(2.5), True, object()]
)
def test_what_is_no_count_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an integer; got"):
        fit_arguments.FitNumbers(**{name: value})


@pytest.mark.parametrize("form", [np.array, np.float16, float])
def test_a_fraction_comes_back_as_a_float_of_python(form):
    split = fit_arguments.FitNumbers(validation_split=form(0.25)).validation_split
    assert (type(split), split) == (float, 0.25)
    with pytest.raises(ValueError, match="validation_split must be at least 0 and below 1"):
        fit_arguments.FitNumbers(validation_split=form(1.5))


@pytest.mark.parametrize("form", [int, float, np.array])
def test_how_much_is_shown_may_be_said_in_any_number(form):
    verbose = fit_arguments.FitNumbers(verbose=form(2)).verbose
    assert (type(verbose), verbose) == (int, 2)
    with pytest.raises(ValueError, match="verbose must be 'auto', 0, 1 or 2"):
        fit_arguments.FitNumbers(verbose=form(3))


@pytest.mark.parametrize(
    ("value", "shuffled"), [("batch", "batch"), (0, False), (np.array(1), True), (np.True_, True)]
)
def test_whether_rows_are_shuffled_is_a_flag_or_a_word(value, shuffled):
    assert fit_arguments.FitNumbers(shuffle=value).shuffle is shuffled
    for other in (2, 1.0, "rows", None, np.array([1])):
        with pytest.raises(ValueError, match="shuffle must be True, False or 'batch'"):
            fit_arguments.FitNumbers(shuffle=other)


@pytest.mark.parametrize("kind", [TypeError, ValueError, RuntimeError])
def test_bad_arguments_are_refused_and_nothing_else_is(kind):
    one, other = object(), object()
    with pytest.raises(kind) as info, refusals(one):
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
