"""A call of `fit` is checked and understood before anything starts."""

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationSet
from tests.fit.requests import request_of
from tests.networks import ROWS, arrays, sequential

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


@pytest.fixture(scope="module")
def model():
    return sequential()


def dataset(rows=ROWS):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).batch(20)


def test_validation_data_says_how_it_is_validated_where_the_set_does_not(model):
    own = ValidationSet(data=arrays(30), freq=5, batch_size=3)
    (plain,) = request_of(Trainer(model), validation_data=arrays(40), batch_size=16).sets.values()
    assert (plain.freq, plain.steps, plain.batch_size) == (1, None, 16)
    given = dict(validation_freq=2, validation_steps=3, validation_batch_size=8)
    sets = request_of(Trainer(model), validation_data={"own": own, "other": dataset(40)}, **given).sets
    assert sets["own"] is own
    assert (sets["other"].freq, sets["other"].steps, sets["other"].batch_size) == (2, 3, 8)


def test_a_split_is_the_validation_where_there_is_no_other(model):
    request = request_of(Trainer(model), validation_split=0.25, batch_size=1)
    (validation,) = request.sets.values()
    held_out = len(validation.data[0])
    assert held_out == ROWS - int(ROWS * 0.75)
    assert request.feed.num_batches == ROWS - held_out
    (validation,) = request_of(Trainer(model), validation_split=0.25, validation_data=arrays(9)).sets.values()
    assert len(validation.data[0]) == 9


def test_without_a_batch_size_it_follows_from_the_steps_of_an_epoch_as_by_keras(model):
    assert request_of(Trainer(model), steps_per_epoch=4).feed.num_batches == 4


def test_a_model_compiled_anew_outside_the_scope_is_refused():
    with STRATEGY.scope():
        model, other = sequential(), sequential()
    trainer = Trainer(model, strategy=STRATEGY)
    other.optimizer = keras.optimizers.SGD()
    trainer.model = other
    with pytest.raises(ValueError, match="the optimizer SGD of the model"):
        request_of(trainer)
