"""DataFrames and Series of pandas are data as under Keras: overlapped, rolled back, resumed like arrays."""

from __future__ import annotations

import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, assert_same_weights, sequential
from tests.whole_fits.test_replay import callbacks

pd = pytest.importorskip("pandas", reason="lacks pandas")


def frames(rows, seed):
    x, y = arrays(rows, seed)
    names = [f"column {number}" for number in range(x.shape[1])]
    return pd.DataFrame(x, columns=names), pd.Series(y, name="label")


def validated(how):
    """Returns the arguments of `fit` that say on what is validated."""
    if how == "split":
        return {"validation_split": 0.25}
    data = frames(VALIDATION_ROWS, 1)
    weights = [pd.Series(np.linspace(0.5, 2, VALIDATION_ROWS))] if how == "weighted" else []
    return {"validation_data": (*data, *weights)}


def fit(fit_, how, **more):
    x, y = frames(160, 0)
    weights = pd.Series(np.linspace(2, 0.5, len(x))) if how == "weighted" else None
    fit_(x, y, batch_size=16, sample_weight=weights, verbose=0, **validated(how), **more)


@pytest.mark.parametrize("how", ["plain", "split", "weighted"])
def test_frames_give_the_numbers_of_keras(how):
    expected = sequential()
    fit(expected.fit, how, epochs=8, callbacks=callbacks())
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap="always"))
    fit(trainer.fit, how, epochs=8, callbacks=callbacks())
    assert not any("in step with the training:" in message for message in trainer.messages)
    assert_same_history(trainer.model.history.history, expected.history.history)
    assert_same_weights(trainer.model, expected)


def test_a_resumed_training_on_frames_ends_as_the_unbroken_one(tmp_path):
    whole, resumed = sequential(), sequential()
    fit(Trainer(whole).fit, "plain", epochs=4, resume=tmp_path / "a")
    fit(Trainer(sequential()).fit, "plain", epochs=2, resume=tmp_path / "b")
    fit(Trainer(resumed).fit, "plain", epochs=4, resume=tmp_path / "b")
    assert_same_history(resumed.history.history, whole.history.history)
    assert_same_weights(resumed, whole)


def test_frames_are_evaluated_as_by_keras():
    x, y = frames(100, 2)
    model = sequential()
    expected = model.evaluate(x, y, batch_size=32, verbose=0)
    np.testing.assert_allclose(Trainer(model).evaluate(x, y, batch_size=32, verbose=0), expected, rtol=1e-5)
