"""DataFrames and Series of pandas are data as under Keras: overlapped, rolled back, resumed like arrays."""

import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import VALIDATION_ROWS, Outcome, arrays, assert_same_outcome
from tests.pools import sequential
from tests.whole_fits.comparing import assert_as_keras, waits
from tests.whole_fits.test_replay import callbacks

pd = pytest.importorskip("pandas", reason="lacks pandas")


def frames(rows, seed):
    x, y = arrays(rows, seed)
    names = [f"column {number}" for number in range(x.shape[1])]
    return pd.DataFrame(x, columns=names), pd.Series(y, name="label")


def fit(trained, how="plain", **more):
    x, y = frames(160, 0)
    given = {"validation_data": frames(VALIDATION_ROWS, 1)}
    if how == "split":
        given = {"validation_split": 0.25}
    if how == "weighted":
        weights = pd.Series(np.linspace(0.5, 2, VALIDATION_ROWS))
        given = {"sample_weight": pd.Series(np.linspace(2, 0.5, len(x)))}
        given["validation_data"] = (*frames(VALIDATION_ROWS, 1), weights)
    return trained.fit(x, y, batch_size=16, verbose=0, **given, **more)


@pytest.mark.parametrize("how", ["plain", "split", "weighted"])
def test_frames_give_the_numbers_of_keras(how):
    always = ValidationPolicy(overlap="always")
    trainer = assert_as_keras(lambda trained: fit(trained, how, epochs=8, callbacks=callbacks()), always)
    assert not waits(trainer)


def test_a_resumed_training_on_frames_ends_as_the_unbroken_one(tmp_path):
    whole, begun, resumed = (Trainer(sequential()) for _ in range(3))
    fit(whole, epochs=4, resume=tmp_path / "a")
    fit(begun, epochs=2, resume=tmp_path / "b")
    fit(resumed, epochs=4, resume=tmp_path / "b")
    assert_same_outcome(resumed.model, Outcome.of(whole.model))


def test_frames_are_evaluated_as_by_keras():
    x, y = frames(100, 2)
    model = sequential()
    expected = model.evaluate(x, y, batch_size=32, verbose=0)
    np.testing.assert_allclose(Trainer(model).evaluate(x, y, batch_size=32, verbose=0), expected, rtol=1e-5)
