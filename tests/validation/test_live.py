"""Validation on the model itself: what Keras leaves in it, and what callbacks hear between the batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras.evaluation import FitEvaluation
from overlap_train._snapshot import ModelState
from overlap_train._validation.live import KerasEvaluation, LiveRunner
from tests.networks import arrays, linear
from tests.validation.counting import counting
from tests.whole_fits.test_ended_data import StopsLater

X, Y = arrays(70)


def evaluation(model, test_step=None):
    return KerasEvaluation(model, FitEvaluation(model, lambda: (X, Y, None), 16, None), test_step)


def test_a_live_validation_inside_an_epoch_leaves_the_metrics_of_the_training():
    model = counting()
    model.fit(X, Y, verbose=0)
    state = ModelState(model, [])
    before, calls = [value.numpy() for value in state.read_metrics()], float(model.layers[0].calls)
    runner = LiveRunner(evaluation(model), state, lambda span: None, "why")
    assert set(runner.run_alone().metrics) == {"loss"}
    for value, now in zip(before, state.read_metrics(), strict=True):
        np.testing.assert_array_equal(value, now)
    assert float(model.layers[0].calls) == calls + 5


def callbacks_of(model, *callbacks):
    return keras.callbacks.CallbackList(list(callbacks), model=model)


@pytest.mark.by_default("endless")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("data", "steps", "callbacks", "expected"),
    [
        pytest.param(lambda rows: rows, None, [], (2, 5), id="counted"),
        pytest.param(lambda rows: rows.filter(lambda *_: True), None, [], (1, 5), id="uncounted"),
        pytest.param(lambda rows: rows, 3, [], (1, 3), id="some steps"),
        pytest.param(lambda rows: rows, 9, [], (2, 5), id="too many steps"),
        pytest.param(lambda rows: rows.repeat(), 3, [], (1, 3), id="endless"),
        pytest.param(lambda rows: rows, None, [StopsLater()], (1, 2), id="ended by a hook"),
    ],
)
def test_what_a_validation_draws_is_counted(data, steps, callbacks, expected):
    model, passes = linear(), []
    rows = data(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))
    validate = KerasEvaluation(
        model, FitEvaluation(model, lambda: (rows, None, None), None, steps), None, passes.append
    )
    for _ in range(2):
        validate(callbacks_of(model, *callbacks))
    assert [(made.iterators, made.batches) for made in passes] == [expected] * 2


def test_a_step_that_was_set_on_the_model_itself_is_there_again_behind_it():
    model = linear()
    model.test_step = own = lambda batch: {"own": 1.0}
    validate = evaluation(model, lambda batch: {"around": model.test_step(batch)["own"] + 1.0})
    assert validate(callbacks_of(model)) == {"around": 2.0}
    assert model.test_step is own
