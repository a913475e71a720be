"""A model that stays whole is called, and what it returns is found out by calling it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train.scheduling.graph import Port
from overlap_train.scheduling.models import ModelInputs, WholeModel

X = tf.ones((2, 4))


class Returns(keras.Model):
    """Returns what a function makes of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def whole(model):
    return WholeModel(model, "m", ModelInputs((tf.TensorSpec((None, 4)),)))


def test_outputs_are_those_of_the_call_and_not_of_the_graph():
    class Fewer(keras.Model):
        def call(self, inputs):
            return {"first": super().call(inputs)[:, :1], "nothing": None}

    inputs = keras.Input((4,))
    split = whole(Fewer(inputs, keras.layers.Dense(3)(inputs)))
    assert split.spec(Port(0)).shape.as_list() == [None, 1]
    assert split.pack([7]) == {"first": 7, "nothing": None}
    assert len(split.graph) == 1


@pytest.mark.parametrize(
    ("function", "packed"),
    [
        (lambda x: [x], [0]),
        (lambda x: (x, [x * 2.0]), (0, [1])),
        (lambda x: {"b": x, "a": None}, {"a": None, "b": 0}),
    ],
    ids=["list", "tuple", "dict"],
)
def test_the_nesting_is_kept(function, packed):
    split = whole(Returns(function))
    outputs = split.graph.outputs
    assert split.pack(range(len(outputs))) == packed
    run = split.function([Port(-1)], range(1), outputs, False)
    assert len(run(X)) == len(outputs)


class Sees(keras.layers.Layer):
    """Notes in which phase it is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x, training=None):
        self.seen.append(training)
        return x


class Trains(Sees):
    """Trains unless it is told otherwise, as layers that augment images do."""

    def call(self, x, training=True):
        return super().call(x, training)


@pytest.mark.parametrize(
    ("kind", "given", "seen"),
    [
        (Sees, {}, False),
        (Sees, {"training": False}, False),
        (Sees, {"training": True}, True),
        (Trains, {}, False),
    ],
)
def test_the_call_is_one_of_inference_but_for_what_the_graph_trains(kind, given, seen):
    inputs, layer = keras.Input((4,)), kind()
    model = keras.Model(inputs, layer(inputs, **given))
    layer.seen.clear()
    whole(model)
    assert layer.seen == [seen]


def test_a_call_without_a_training_phase_is_not_given_one():
    class Bare(keras.Model):
        def __call__(self, x):
            return x * 3.0

    (three,) = whole(Bare()).function([Port(-1)], range(1), [Port(0)], False)(X)
    assert three.numpy().tolist() == [[3.0] * 4] * 2


def test_what_is_no_array_is_refused():
    with pytest.raises(ValueError, match="m returns a RaggedTensor, which is no array"):
        whole(
            Returns(
                lambda x: tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill(tf.shape(x)[:1], 4))
            )
        )
