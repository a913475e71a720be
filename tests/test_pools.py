"""What pools give is as new, whatever the tests before have done to it."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from tests import networks, pools
from tests.networks import arrays

X, Y = arrays(64)


@pytest.fixture
def give():
    """Return a pool of its own, whose models a test can give back before it ends."""

    def build(optimizer="adam"):
        return networks.sequential(optimizer)

    yield pools.pooled(build)
    for key in [key for key in pools._POOLS if key[0] is build]:
        del pools._POOLS[key]


def fitted(model):
    return model.fit(X, Y, batch_size=16, epochs=2, validation_split=0.2, verbose=0).history


@pytest.mark.nightly
def test_a_model_comes_back_as_it_was_and_traced(give):
    first = give()
    new = first.get_weights()
    expected, function = fitted(first), first.train_function
    first._initial_epoch = 1  # as BackupAndRestore leaves it, which would shorten the next fit
    pools.take_back()
    again = give()
    assert again is first
    for value, before, another in zip(
        again.get_weights(), new, networks.sequential().get_weights(), strict=True
    ):
        np.testing.assert_array_equal(value, before)
        np.testing.assert_array_equal(value, another)
    assert int(again.optimizer.iterations) == 0
    assert fitted(again) == expected
    assert again.train_function is function


def test_a_test_gets_each_model_once_and_objects_are_shared_by_no_two(give):
    optimizer = keras.optimizers.SGD()
    models, own = [give(), give(), give("sgd")], give(optimizer)
    assert len({id(model) for model in models}) == 3
    pools.take_back()
    assert [give(), give(), give("sgd")] == models
    assert give(optimizer) is not own


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.compile("sgd", "mse"),
        lambda model: setattr(model, "train_step", lambda data: {}),
        lambda model: setattr(model.layers[0], "trainable", False),
        lambda model: setattr(model, "run_eagerly", True),
    ],
    ids=["compiled", "a step of its own", "frozen", "eager"],
)
def test_a_model_that_became_another_is_given_to_nobody(give, change):
    model = give()
    change(model)
    pools.take_back()
    assert give() is not model


def test_a_model_of_a_pool_draws_as_a_new_one_does(give):
    def drawn(build):
        build()
        return np.random.random(), keras.random.uniform(()).numpy()

    give()
    pools.take_back()
    assert drawn(give) == drawn(networks.sequential)
