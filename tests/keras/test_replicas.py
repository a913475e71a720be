"""What copying a model, training in parts and training under `tf.distribute` need of Keras."""

from __future__ import annotations

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._keras import copies as keras_copies
from overlap_train._keras import models as keras_models
from overlap_train._keras import replicas as keras_replicas
from tests.networks import arrays, sequential, subclassed

X, _ = arrays(20)


def test_a_model_knows_the_scope_that_made_it_and_so_does_its_optimizer():
    """`_distribute_strategy`, `_distribution_strategy`: else a foreign scope would train without a word."""
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        inside = sequential()
    outside = sequential()
    assert keras_replicas.strategy_of(inside) is strategy
    assert keras_replicas.strategy_of(outside) is None
    assert keras_replicas.optimizer_strategy(inside.optimizer) is strategy
    assert keras_replicas.optimizer_strategy(outside.optimizer) is not strategy
    wrapped = keras.optimizers.LossScaleOptimizer(outside.optimizer)
    assert keras_replicas.inner_optimizer(wrapped) is outside.optimizer
    assert keras_replicas.inner_optimizer(outside.optimizer) is outside.optimizer


def test_losses_are_not_scaled_in_the_block_and_only_on_this_thread():
    """`scale_loss_for_distribution`, looked up in its module by all of Keras's losses."""
    module = keras_replicas.loss_module
    stock = module.scale_loss_for_distribution
    elsewhere = []
    with keras_replicas.unscaled_losses():
        patched = module.scale_loss_for_distribution
        assert patched is not stock
        value = object()
        assert patched(value) is value
        thread = threading.Thread(target=lambda: elsewhere.append(float(patched(tf.constant(2.0)))))
        thread.start()
        thread.join(timeout=30)
    assert elsewhere == [2.0]  # by Keras's own function, which takes a tensor
    assert module.scale_loss_for_distribution is stock


def test_gradients_are_not_summed_again_in_the_block():
    """`_all_reduce_sum_gradients` is what applies gradients calls on each replica."""
    optimizer = keras.optimizers.SGD()
    stock = optimizer._all_reduce_sum_gradients
    with keras_replicas.gradients_already_reduced(optimizer):
        assert optimizer._all_reduce_sum_gradients(zip([1], [2], strict=True)) == [(1, 2)]
    assert optimizer._all_reduce_sum_gradients == stock


def test_added_losses_are_kept_apart_and_put_back():
    """`_losses` and `_loss_ids`: what `model.losses` reads."""
    model = subclassed()
    model(X)
    with contextlib.ExitStack() as patches:
        added = keras_replicas.keep_added_losses_apart(keras_models.flat_layers(model), patches)()
        model(X)
        assert [layer for layer, _ in added] == [model]
        assert len(model.losses) == 1  # the regulariser's
    keras_replicas.place_added_losses(model, [(model, tf.constant(5.0))])
    assert float(model.losses[0]) == 5.0
    with keras_replicas.without_updates(model):
        keras_replicas.place_added_losses(model, [(model, tf.constant(7.0))])
        assert float(model.losses[0]) == 7.0
        assert len(model.losses) == 2


def test_assignments_are_forgotten_in_the_block():
    model = sequential()
    before = model.optimizer.iterations.numpy()
    with keras_replicas.without_updates(model):
        model.optimizer.iterations.assign_add(1)
    assert model.optimizer.iterations.numpy() == before


def test_building_leaves_random_states_and_names_as_they_were():
    keras.utils.set_random_seed(3)
    names = dict(keras_copies.global_state.get_global_attribute("object_name_uids") or {})
    with keras_copies.preserved_state():
        sequential()
        keras.random.normal((2,))
        np.random.random()
    assert dict(keras_copies.global_state.get_global_attribute("object_name_uids")) == names

    def draws():
        return np.random.random(), float(tf.random.uniform(())), keras.random.randint((), 0, 10**6).numpy()

    inside = draws()
    keras.utils.set_random_seed(3)
    assert inside == draws()


def test_functions_in_a_configuration_are_made_again_where_they_are_trusted():
    layer = keras.layers.Lambda(lambda x: x + 1)
    with pytest.raises(ValueError, match=r"unsafe|safe_mode"):
        keras.layers.Lambda.from_config(layer.get_config())
    with keras_copies.trusted():
        assert keras.layers.Lambda.from_config(layer.get_config()) is not None


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
