"""A model's variables are known whoever holds them, by Keras's object and by TensorFlow's."""

from __future__ import annotations

import keras
import tensorflow as tf

from overlap_train._copies.model_variables import ModelVariables


def test_those_of_the_layers_the_optimizer_and_the_metrics_are_in_it(model):
    model.optimizer.build(model.trainable_variables)
    known = ModelVariables(model)
    for variable in (model.layers[0].kernel, model.optimizer.iterations, model.metrics[0].variables[0]):
        assert id(variable) in known
        assert id(variable.value) in known
    assert id(tf.Variable(0.0)) not in known
    assert len(known) == len(set(known)) > 0


def test_a_model_that_is_not_compiled_has_its_layers_and_none_has_nothing():
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert len(ModelVariables(plain)) == 4
    assert len(ModelVariables(None)) == 0
