"""What Keras calls by a name is taken as Keras takes it."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train._support import fit_arguments


def test_fit_takes_no_epoch_at_all_and_the_scalars_of_numpy():
    fit_arguments.check_fit(epochs=0)
    fit_arguments.check_fit(
        epochs=np.int64(2),
        batch_size=np.int32(8),
        validation_split=np.float32(0.25),
        shuffle=np.True_,
        verbose=np.int64(0),
    )
    fit_arguments.check_fit(shuffle=1, verbose=True)


def test_epochs_to_validate_may_be_a_range_of_any_length():
    validated = fit_arguments.epoch_selector(range(2, 10**12, 2))
    assert [validated(epoch) for epoch in range(4)] == [False, True, False, True]


@pytest.mark.parametrize("value", [(1, 3), range(2), np.arange(2), np.int64(2), 2.0, "2", {1}, None])
def test_keras_takes_a_list_or_an_integer_to_say_which_epochs_are_validated(value):
    with pytest.raises(ValueError, match="Expected `validation_freq` to be a list or int") as caught:
        fit_arguments.check_frequency(value)
    with pytest.raises(ValueError, match="list or int") as expected:
        keras.Sequential()._should_eval(0, value)
    assert str(caught.value) == str(expected.value)


def test_what_cannot_be_meant_is_refused_in_other_words():
    fit_arguments.check_frequency([1, 3])
    for value in (0, [1, 0]):
        with pytest.raises(ValueError, match="validation_freq must be at least 1; got 0"):
            fit_arguments.check_frequency(value)
