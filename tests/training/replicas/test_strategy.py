"""Which strategy a model trains under, and which rows of a batch each of its replicas has."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._training.strategy import Replicas, find_strategy, shares_by_keras, shares_of
from tests.networks import arrays, sequential
from tests.parallel.together import ThreadHost

STRATEGY = tf.distribute.OneDeviceStrategy("CPU:0")


@pytest.fixture(scope="module")
def model():
    with STRATEGY.scope():
        return sequential()


@pytest.mark.parametrize(
    ("divide", "count", "rows", "shares"),
    [
        (shares_of, 1, 7, [(0, 7)]),
        (shares_of, 2, 7, [(0, 4), (4, 3)]),
        (shares_of, 3, 7, [(0, 3), (3, 2), (5, 2)]),
        (shares_of, 3, 6, [(0, 2), (2, 2), (4, 2)]),
        (shares_of, 3, 2, [(0, 1), (1, 1), (2, 0)]),
        (shares_of, 2, 0, [(0, 0), (0, 0)]),
        (shares_by_keras, 4, 13, [(0, 4), (4, 4), (8, 4), (12, 1)]),
        (shares_by_keras, 4, 5, [(0, 2), (2, 2), (4, 1), (5, 0)]),
    ],
)
def test_shares_differ_by_one_row_at_most_and_keras_s_only_at_the_end(divide, count, rows, shares):
    assert divide(rows, count) == shares
    while_tracing = divide(tf.constant(rows), count)
    assert [(int(first), int(size)) for first, size in while_tracing] == shares


def test_a_model_trains_under_the_strategy_that_made_it_if_any(model):
    assert find_strategy(model, None).strategy is STRATEGY
    assert find_strategy(model, STRATEGY).strategy is STRATEGY
    with STRATEGY.scope():
        assert find_strategy(model, None).strategy is STRATEGY
    assert find_strategy(sequential(), None) is None


def test_replicas_are_numbered_over_the_hosts_and_validations_spread_over_those_of_one(monkeypatch):
    replicas = Replicas(STRATEGY)
    monkeypatch.setattr(Replicas, "devices", property(lambda _: ("GPU:0", "GPU:1")))
    replicas.hosts = ThreadHost(2, [None] * 3, None)
    assert replicas.first == 4
    assert replicas.spread == ("GPU:0", "GPU:1")


@pytest.mark.parametrize(("batch_size", "fits"), [(3, True), (None, True), (2, False)])
def test_a_batch_has_a_row_for_each_replica(batch_size, fits):
    replicas = Replicas(STRATEGY)
    replicas.count = 3
    if fits:
        replicas.check_batch(batch_size)
        return
    with pytest.raises(ValueError, match=r"batch_size is 2, and 3 replicas .* of at least 3"):
        replicas.check_batch(batch_size)


def test_metrics_are_read_as_the_first_replica_counted_them(model):
    x, y = arrays(20)
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    replicas = Replicas(STRATEGY)
    own = replicas.own_metrics(model)
    for name, value in expected.items():
        np.testing.assert_allclose(own[name], value, rtol=1e-6)


def test_missing_variables_are_made_in_the_scope():
    with STRATEGY.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile("adam", "mse")
    replicas = find_strategy(model, None)
    replicas.build(model, (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 3))))
    assert [variable.shape for variable in model.weights] == [(2, 3), (3,)]
    replicas.check_model(model)
    assert replicas.own_metrics(model).keys() == {"loss"}


def test_a_model_may_be_compiled_after_its_trainer_is_made():
    with STRATEGY.scope():
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    Replicas(STRATEGY).check_model(made)
    with pytest.raises(ValueError, match="was not made in the scope"):
        Replicas(STRATEGY).check_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
