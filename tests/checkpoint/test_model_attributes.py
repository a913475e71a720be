"""Plain attributes that callbacks set on the model go on, but for those that compiled code has read."""

from __future__ import annotations

import functools

import keras
import pytest

from overlap_train._checkpoint.attributes import ModelAttributes
from overlap_train.errors import CheckpointCorruptError


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.name_of_run = keras.layers.Dense(1), "a"

    def call(self, x):
        return self.dense(x)

    @property
    def computed(self):
        return 1


@pytest.fixture
def model():
    made = Plain()
    made.compile("sgd", "mse")
    return made


def test_what_has_changed_since_the_beginning_is_kept(model):
    model.rate = 0.5
    attributes = ModelAttributes(model)
    assert attributes.changed() == {}
    model.rate, model.best_epoch, model.seen = 0.25, 3, object()
    model.stop_training = True
    assert attributes.changed() == {"rate": 0.25, "best_epoch": 3}


def test_a_number_of_another_kind_is_a_change(model):
    model.rate = 1
    attributes = ModelAttributes(model)
    model.rate = True
    assert attributes.changed() == {"rate": True}


def test_what_the_code_of_the_model_reads_stays(model):
    class Reads(keras.layers.Layer):
        def call(self, x):
            return x * self.scale * model.rate

    model.reads = Reads()
    attributes = ModelAttributes(model, [functools.partial(lambda each: each.threshold)])
    changed = {"rate": 1.0, "best_epoch": 2, "dense": 3, "threshold": 0.5}
    assert attributes.put_back(changed) == ["rate", "dense", "threshold"]
    assert model.best_epoch == 2
    assert not hasattr(model, "rate")
    model.run_eagerly = True
    assert attributes.put_back({"rate": 1.0}) == []
    assert model.rate == 1.0


@pytest.mark.parametrize(
    "values",
    [
        *({"call": 1}, {"computed": 1}, {"__class__": 1}, {"_tracker": 1}, {"stop_training": True}),
        *({"best": [1]}, {"dense": 5}, {"optimizer": 5}, {"loss": None}, {"seen": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("eagerly", [False, True])
def test_what_no_training_has_kept_is_corrupt(model, values, eagerly):
    model.run_eagerly, model.seen = eagerly, object()
    with pytest.raises(CheckpointCorruptError, match="of the model is invalid"):
        ModelAttributes(model).check(values)
    ModelAttributes(model).check({"best": 1, "rate": None})
