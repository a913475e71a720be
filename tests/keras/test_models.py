"""What a model is, as Keras sees it."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train._keras import models as keras_models
from tests.networks import CLASSES, arrays, crossentropy, sequential

X, Y = arrays(20)


def test_whether_a_model_is_compiled():
    """Model.compiled."""
    model = keras.Sequential([keras.layers.Dense(CLASSES)])
    with pytest.raises(ValueError, match="not compiled"):
        keras_models.require_compiled(model)
    model.compile("sgd", crossentropy(), metrics=["accuracy"])
    keras_models.require_compiled(model)


def test_the_parts_of_a_model_are_listed():
    """Model._flatten_layers, _compile_loss, _compile_metrics."""
    model = sequential()
    assert {model, *model.layers} <= set(keras_models.flat_layers(model))
    loss, metrics = keras_models.compiled_parts(model)
    assert not loss.built
    model.fit(X, Y, verbose=0)
    assert loss.built
    assert metrics.built


def test_steps_run_eagerly_for_the_model_or_for_the_whole_process():
    """Model.run_eagerly, tf.config.functions_run_eagerly."""
    assert not keras_models.runs_eagerly(sequential())
    assert keras_models.runs_eagerly(sequential(run_eagerly=True))
    tf.config.run_functions_eagerly(True)
    try:
        assert keras_models.runs_eagerly(sequential())
    finally:
        tf.config.run_functions_eagerly(False)


def test_a_variable_has_a_handle_for_each_replica():
    """Variable.value, which under a strategy is not one variable but several."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        mirrored = keras.Variable([1.0, 2.0])
    assert keras_models.variable_handles(mirrored) == [mirrored.value.values[0].handle]
    variable = keras.Variable(1.0)
    (handle,) = keras_models.variable_handles(variable)
    assert handle is variable.value.handle
    variable.assign(5.0)
    assert float(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)) == 5.0


def test_what_can_be_trained_is_a_layer_and_a_trainer():
    """backend.tensorflow.trainer.TensorFlowTrainer: a base class, which need not be keras.Model's."""

    class Both(keras.Layer, keras_models.KerasTrainer):
        def __init__(self):
            keras.Layer.__init__(self)
            keras_models.KerasTrainer.__init__(self)

    assert keras_models.is_trainer(sequential())
    assert keras_models.is_trainer(Both())
    assert not keras_models.is_trainer(keras.layers.Dense(1))
    assert not keras_models.is_trainer(object())


def test_a_scope_tells_which_variables_have_a_value_in_it():
    """StatelessScope.state_mapping."""
    variable, other = keras.Variable(1.0), keras.Variable(2.0)
    with keras.StatelessScope() as scope:
        variable.assign(3.0)
    assert keras_models.scope_variable_ids(scope) == {id(variable)}
    assert id(other) not in keras_models.scope_variable_ids(scope)
