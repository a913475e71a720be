"""`Trainer.explain`: what `fit` would do, without a trace in the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from tests import pools
from tests.networks import sequential as plain_model
from tests.whole_fits.comparing import VALIDATION, Rows, X, Y, slices


class Everything(keras.callbacks.Callback):
    """Would notice any hook."""

    called = False

    def on_epoch_end(self, epoch, logs=None):
        self.called = True

    on_train_begin = on_train_end = on_test_end = lambda self, logs=None: setattr(self, "called", True)


def test_nothing_is_trained_and_nobody_is_told(tmp_path):
    model, callback = plain_model(), Everything()
    rows, board = Rows(X[:16], Y[:16]), keras.callbacks.TensorBoard(str(tmp_path / "board"))
    weights = [w.copy() for w in model.get_weights()]
    trainer, resume = Trainer(model), CheckpointPolicy(directory=tmp_path / "c")
    trainer.explain(rows, validation_data=VALIDATION, callbacks=[board])
    assert (rows.told, board.model) == ([], None)
    given = {"validation_data": VALIDATION, "callbacks": [callback], "resume": resume}
    explanation = trainer.explain(X, Y, epochs=5, **given)
    assert explanation.overlaps
    assert explanation.in_step is None
    assert explanation.steps_per_epoch == 7
    assert not callback.called
    assert not list(tmp_path.iterdir())
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert trainer.ended is None
    assert trainer.accounts == []
    assert trainer.recorder.spans() == (), "the timeline is of fits"


@pytest.mark.parametrize("validates", [False, True])
@pytest.mark.by_default("True")
def test_a_shuffle_draws_what_it_would_have_drawn(validates):
    firsts = []
    for explained in (False, True):
        tf.random.set_seed(1)
        rows = slices().shuffle(len(X), seed=3).batch(16)
        if explained:
            data, held_out = ((X, Y), rows) if validates else ((rows,), (X, Y))
            explanation = Trainer(plain_model()).explain(*data, validation_data=held_out)
            assert explanation.overlaps
        firsts.append(next(iter(rows))[0].numpy())
    np.testing.assert_array_equal(*firsts)


@pytest.mark.by_default("True-0")
@pytest.mark.parametrize(("python", "kept"), [(False, 0), (True, 0), (True, 1 << 20)])
def test_it_tells_of_a_pipeline_what_the_fit_would_find_out_by_drawing(python, kept):
    rows = slices().batch(16)
    if python:
        rows = rows.map(lambda x, y: (tf.ensure_shape(tf.py_function(lambda v: v, [x], x.dtype), x.shape), y))
    given = {"validation_data": VALIDATION, "callbacks": [keras.callbacks.ReduceLROnPlateau()]}
    policy = ValidationPolicy(keep_bytes=kept)
    explanation = Trainer(pools.sequential(), validation=policy).explain(rows, **given)
    trainer = Trainer(pools.sequential(), validation=policy)
    trainer.fit(rows, verbose=0, **given)
    in_step = python and not kept  # whose batches could not be trained again
    assert explanation.overlaps is not in_step
    assert any("validating in step" in message for message in trainer.messages) is in_step


class Acts(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1


@pytest.mark.parametrize(
    ("policy", "data", "told"),
    [
        (ValidationPolicy(max_lag=0), VALIDATION, "max_lag=0"),
        (ValidationPolicy(), None, "nothing to validate"),
        (ValidationPolicy(), Rows(*VALIDATION), "Acts between its batches"),  # which a fit reads when due
    ],
)
def test_why_not_has_an_answer_in_every_case(policy, data, told):
    trainer = Trainer(pools.sequential(), validation=policy)
    explanation = trainer.explain(X, Y, validation_data=data, callbacks=[Acts()])
    assert not explanation.overlaps
    assert told in explanation.in_step


def test_what_fit_refuses_it_refuses():
    with pytest.raises(ValueError, match="epochs"):
        Trainer(pools.sequential()).explain(X, Y, epochs=-1)
    with pytest.raises(TypeError, match=r"explain takes the arguments of fit: .*'no_such'"):
        Trainer(pools.sequential()).explain(X, Y, no_such=1)
