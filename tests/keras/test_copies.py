"""What copying a model needs of Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import copies as keras_copies
from tests.networks import sequential


def test_building_leaves_random_states_and_names_as_they_were():
    keras.utils.set_random_seed(3)
    names = dict(keras_copies.global_state.get_global_attribute("object_name_uids") or {})
    with keras_copies.undisturbed():
        sequential()
        keras.random.normal((2,))
        np.random.random()
    assert dict(keras_copies.global_state.get_global_attribute("object_name_uids")) == names
    inside = np.random.random(), float(tf.random.uniform(())), keras.random.randint((), 0, 10**6).numpy()
    keras.utils.set_random_seed(3)
    assert inside == (
        np.random.random(),
        float(tf.random.uniform(())),
        keras.random.randint((), 0, 10**6).numpy(),
    )


def test_what_a_model_was_compiled_with():
    model = sequential("sgd")
    arguments = keras_copies.compile_arguments(model)
    assert arguments["loss"] is model.loss
    assert {"optimizer", "metrics", "weighted_metrics", "jit_compile", "run_eagerly"} <= set(arguments)
    assert keras_copies.compile_arguments(keras.Sequential()) is None


def test_functions_in_a_configuration_are_made_again_where_they_are_trusted():
    layer = keras.layers.Lambda(lambda x: x + 1)
    with pytest.raises(ValueError, match=r"unsafe|safe_mode"):
        keras.layers.Lambda.from_config(layer.get_config())
    with keras_copies.trusted():
        assert keras.layers.Lambda.from_config(layer.get_config()) is not None


def test_the_attributes_of_every_model():
    assert {"name", "built", "compiled"} <= keras_copies.base_attributes()


def test_a_copy_is_frozen_where_the_model_is():
    """_trainable of layers, trainable of variables."""
    model, copy = sequential(), sequential()
    model.layers[0].trainable = False
    model.layers[-1].bias.trainable = False
    keras_copies.set_trainable(copy, keras_copies.trainable(model))
    assert [layer.trainable for layer in copy.layers] == [False, True, True]
    assert [v.path for v in copy.trainable_variables] == [v.path for v in model.trainable_variables]
    assert len(copy.trainable_variables) == 1
    model.layers[0].trainable = model.layers[-1].trainable = True
    keras_copies.set_trainable(copy, keras_copies.trainable(model))
    assert [v.path for v in copy.trainable_variables] == [v.path for v in model.trainable_variables]
    model.counter = keras.Variable(1.0)
    model.layers[0].trainable = False
    keras_copies.set_trainable(copy, keras_copies.trainable(model))
    assert not copy.layers[0].trainable


def test_an_optimizer_is_built_once():
    model = sequential("adam")
    keras_copies.build_optimizer(model)
    count = len(model.optimizer.variables)
    keras_copies.build_optimizer(model)
    assert model.optimizer.built
    assert len(model.optimizer.variables) == count > 2
    keras_copies.build_optimizer(keras.Sequential())
