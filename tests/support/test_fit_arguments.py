"""What Keras calls by a name is taken as Keras takes it."""

from __future__ import annotations

import numpy as np

from overlap_train._support import fit_arguments


def test_fit_takes_no_epoch_at_all_and_the_scalars_of_numpy():
    fit_arguments.check_fit(epochs=0)
    fit_arguments.check_fit(
        epochs=np.int64(2),
        batch_size=np.int32(8),
        validation_split=np.float32(0.25),
        shuffle=np.True_,
        validation_freq=np.int64(2),
        verbose=np.int64(0),
    )
    fit_arguments.check_fit(shuffle=1, verbose=True)


def test_epochs_to_validate_may_be_a_range_of_any_length():
    validated = fit_arguments.epoch_selector(range(2, 10**12, 2))
    assert [validated(epoch) for epoch in range(4)] == [False, True, False, True]
