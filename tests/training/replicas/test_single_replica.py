"""A strategy with one replica: the numbers, the plans and the operations of a step are those without it."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from tests.networks import arrays, linear
from tests.test_no_leak import graphs

X, Y = arrays(68)
STRATEGIES = {
    "OneDeviceStrategy": tf.distribute.OneDeviceStrategy("CPU:0"),
    "MirroredStrategy": tf.distribute.MirroredStrategy(["CPU:0"]),
}


def hidden():
    return keras.layers.Dense(16, activation="relu")


def network(strategy=None, **options):
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        return linear(hidden, optimizer="adam", metrics=["accuracy"], **options)


def trained(model, plan, data="arrays"):
    if data == "arrays":
        rows = 64 if plan.jit else len(X)  # batches of one size, which XLA compiles once
        x, y, batch_size = X[:rows], Y[:rows], 16
    else:
        x, y, batch_size = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), None, None
    trainer = Trainer(model, execution=plan)
    history = trainer.fit(
        x, y, batch_size=batch_size, shuffle=False, epochs=2, verbose=0, validation_data=(X[:64], Y[:64])
    )
    return history.history, model.get_weights()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "data", "plan", "options"),
    [
        ("OneDeviceStrategy", "arrays", ExecutionPlan(), {}),
        ("MirroredStrategy", "arrays", ExecutionPlan(), {}),
        ("MirroredStrategy", "arrays", ExecutionPlan(jit=True), {}),
        ("MirroredStrategy", "dataset", ExecutionPlan(), {"jit_compile": True}),
        # more parts than the last batch of 4 has rows
        ("MirroredStrategy", "dataset", ExecutionPlan(batch_splits=6), {}),
    ],
    ids=["one", "auto", "jit", "compiled", "6 splits"],
)
def test_numbers_are_those_without_a_strategy(strategy, data, plan, options):
    history, weights = trained(network(STRATEGIES[strategy], **options), plan, data)
    expected, expected_weights = trained(network(**options), plan, data)
    assert list(history) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5)
    for ours, theirs in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


PIPELINES = {
    "shuffled": lambda: rows().shuffle(100).batch(16),
    "cached": lambda: rows().cache().shuffle(100).batch(16).prefetch(2),
    "interleaved": lambda: (
        tf.data.Dataset.range(4)
        .shuffle(4)
        .interleave(lambda i: rows().shard(4, i))
        .batch(16)
        .apply(tf.data.experimental.assert_cardinality(5))
    ),
}


def fitted_twice(strategy, wrap, make, **lengths):
    """Returns what two trainings and an evaluation behind each show, on the same two data objects."""
    model, train, validation = network(strategy), make(), make()
    shown = []
    for _ in range(2):
        history = wrap(model).fit(train, epochs=2, verbose=0, validation_data=validation, **lengths)
        shown += [history.history["loss"], history.history["val_loss"]]
        shown.append(wrap(model).evaluate(validation, verbose=0, steps=3))
    return shown, model.get_weights()


@pytest.mark.nightly
@pytest.mark.parametrize("lengths", [{}, {"steps_per_epoch": 2, "validation_steps": 2}], ids=["all", "steps"])
@pytest.mark.parametrize("make", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_orders_are_drawn_behind_the_batches_at_which_keras_looks(strategy, make, lengths):
    theirs = fitted_twice(STRATEGIES[strategy], lambda model: model, make, **lengths)
    ours = fitted_twice(STRATEGIES[strategy], Trainer, make, **lengths)
    for mine, expected in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.nightly
def test_a_dropped_model_leaves_no_graph_behind():
    counts = []
    for _ in range(3):
        trained(network(STRATEGIES["MirroredStrategy"]), ExecutionPlan(jit=False))
        keras.backend.clear_session()
        counts.append(len(graphs()))
    assert counts[2] <= counts[1], f"graphs left behind: {counts}"
