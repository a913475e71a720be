"""A batch is drawn as `next` would, without an error at the end, and prepared by the user's function."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from overlap_train._data.batches import trace_preprocess
from overlap_train._data.iterators import next_batch
from tests.networks import assert_same_history
from tests.pools import pooled
from tests.seeds import set_random_seed


@pytest.mark.parametrize(
    "made", [lambda: tf.data.Dataset.range(3), lambda: range(3)], ids=["dataset", "Python"]
)
def test_it_draws_what_next_does_and_none_from_the_end_on(made, monkeypatch):
    """An error of TensorFlow's at the end is not made either."""
    raised = []
    monkeypatch.setattr(
        tf.errors.OutOfRangeError, "__init__", lambda self, *args, **options: raised.append(args)
    )
    iterator = iter(made())
    assert [int(batch) for batch in iter(lambda: next_batch(iterator), None)] == [0, 1, 2]
    assert next_batch(iterator) is None
    assert not raised


RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (44, 6), np.uint8)
SCALED = PIXELS.astype("float32") / np.float32(255)
LABELS = RNG.integers(0, 3, 44)
BATCH = 8


def scale(x, y, sample_weight=None):
    x = tf.cast(x, tf.float32) / 255.0
    return (x, y) if sample_weight is None else (x, y, sample_weight * 2.0)


@pooled
def build():
    set_random_seed(4)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"], weighted_metrics=["accuracy"])
    return model


def datasets(x):
    data = tf.data.Dataset.from_tensor_slices((x, LABELS)).batch(BATCH)
    return {"x": data, "validation_data": data.take(3)}


def generators(x):
    def batches():
        while True:
            yield x[:BATCH], LABELS[:BATCH], None

    return {"x": batches(), "validation_data": batches(), "steps_per_epoch": 4, "validation_steps": 2}


def arrays(x):
    return {"x": x, "y": LABELS, "batch_size": BATCH, "validation_data": (x[:20], LABELS[:20])}


PREPARED = {
    "arrays": (arrays, {}),
    "datasets": (datasets, {}),
    "generators": (generators, {}),
    "parts of batches": (arrays, {"batch_splits": 2}),
    "XLA": (arrays, {"jit": True}),
    "iterator": (arrays, {"loop": "iterator"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("kind", "plan"), PREPARED.values(), ids=PREPARED)
def test_the_numbers_are_those_of_data_prepared_beforehand(kind, plan):
    arguments = {"epochs": 3, "shuffle": False, "verbose": 0}
    model = build()
    history = model.fit(**kind(SCALED), **arguments).history
    policy = ValidationPolicy(workers=2)
    trainer = Trainer(build(), preprocess=scale, validation=policy, execution=ExecutionPlan(**plan))
    assert_same_history(trainer.fit(**kind(PIXELS), **arguments).history, history)
    for ours, theirs in zip(trainer.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_sample_weights_are_the_third_part_of_a_batch():
    weights = np.linspace(0, 1, 44, dtype="float32")
    trainer = Trainer(build(), preprocess=scale)
    ours = trainer.evaluate(PIXELS, LABELS, sample_weight=weights, batch_size=44, return_dict=True)
    theirs = trainer.model.evaluate(SCALED, LABELS, sample_weight=2 * weights, batch_size=44, verbose=0)
    assert ours["loss"] == pytest.approx(theirs[0], rel=1e-5)


def test_the_spec_of_a_prepared_batch_is_that_of_what_the_function_returns():
    raw = (tf.TensorSpec([None, 6], tf.uint8), tf.TensorSpec([None], tf.int64), None)
    traced, (x, y, weight) = trace_preprocess(
        lambda x, y, weight: (tf.cast(x[:, :2], tf.float32), y, weight), raw
    )
    assert traced is not None
    assert x == tf.TensorSpec([None, 2], tf.float32)
    assert y == raw[1]
    assert weight is None


@pytest.mark.parametrize("returned", [None, [1, 2]])
def test_what_is_no_batch_is_refused_before_anything_starts(returned):
    trainer = Trainer(build(), preprocess=lambda x, y: returned)
    with pytest.raises(TypeError, match=r"preprocess returned (NoneType|list); expected x,"):
        trainer.fit(PIXELS, LABELS, verbose=0)
