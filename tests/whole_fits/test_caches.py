"""A cache that learns at its end that it holds all keeps what its first pass brought, as by Keras.

Keras only prefetches, so that it depends on time whether a short pass gets to the end. Eager steps take long
enough.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.data.test_pipeline import forbidden
from tests.networks import arrays, assert_same_history
from tests.seeds import set_random_seed
from tests.whole_fits.test_lengths_of_passes import network

X, Y = arrays(80)
AHEAD = ValidationPolicy(max_lag=2, overlap="always")


def rows():
    """Returns shuffled rows, of which TensorFlow does not know how many there are."""
    return tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: y >= 0).shuffle(80)


def asserted(batches, count=5):
    return batches.apply(tf.data.experimental.assert_cardinality(count))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "make",
    [
        lambda file: asserted(rows().batch(16).cache()),
        lambda file: asserted(rows().batch(16).cache(file)),
        lambda file: asserted(rows().cache().batch(16)),
        lambda file: asserted(rows().batch(16).cache().map(lambda x, y: (2 * x, y))),
        lambda file: asserted(rows().batch(16).cache()).prefetch(2),
        lambda file: forbidden(asserted(rows().batch(16).cache())),
    ],
    ids=["batches", "file", "rows", "mapped", "prefetched", "forbidden"],
)
@pytest.mark.by_default("forbidden")
def test_the_next_pass_has_the_order_that_it_has_by_keras(make, tmp_path):
    found = []
    for ours in (False, True):
        model = network(run_eagerly=not ours)
        set_random_seed(3)
        train, validation = (make(str(tmp_path / f"{ours}{kind}")) for kind in ("train", "validation"))
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        found.append(fit(train, validation_data=validation, epochs=4, verbose=0).history)
    assert_same_history(found[1], found[0])


def slices(count=80):
    return tf.data.Dataset.from_tensor_slices((X[:count], Y[:count]))


def noisy(dataset):
    generator = tf.random.Generator.from_seed(5)
    return dataset.map(lambda x, y: (x + generator.normal(tf.shape(x)), y))


FILES = {
    "rows": lambda file: noisy(slices()).cache(file).batch(16),
    "batches": lambda file: noisy(slices()).batch(16).cache(file),
    "shuffled": lambda file: noisy(slices()).cache(file).shuffle(80, seed=3).batch(16),
    "a part of a batch": lambda file: noisy(slices(75)).cache(file).batch(16),
    "without it": lambda file: noisy(slices(75)).cache(file).batch(16, drop_remainder=True),
    "mapped": lambda file: noisy(slices()).cache(file).batch(16).map(lambda x, y: (2 * x, y), 2),
    "forbidden": lambda file: forbidden(noisy(slices()).cache(file).batch(16)),
}


@pytest.mark.nightly
@pytest.mark.parametrize("policy", [AHEAD, ValidationPolicy(max_lag=0)], ids=["ahead", "in step"])
@pytest.mark.parametrize("source", FILES)
@pytest.mark.by_default("rows-ahead")
def test_the_file_of_a_cache_is_written_by_the_first_pass(source, policy, tmp_path):
    """So that the next pass reads it, and so does the next training."""
    found = []
    for ours in (False, True):
        model = network(run_eagerly=not ours)
        set_random_seed(3)
        folder = tmp_path / str(ours)
        folder.mkdir()
        data = FILES[source](str(folder / "cache"))
        fit = Trainer(model, validation=policy).fit if ours else model.fit
        history = fit(data, validation_data=(X, Y), epochs=3, verbose=0).history
        found.append((history, sorted(each.name for each in Path(folder).iterdir())))
    assert_same_history(found[1][0], found[0][0])
    assert found[1][1] == found[0][1]
