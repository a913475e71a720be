"""A cache that learns at its end that it holds all keeps the order of its first pass, as by Keras.

Keras only prefetches, so that it depends on time whether a short pass gets to the end. Eager steps take long
enough.
"""

from __future__ import annotations

import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.data.test_fetching_ahead import forbidden
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
@pytest.mark.by_default("batches", "rows", "forbidden")
def test_the_next_pass_has_the_order_that_it_has_by_keras(make, tmp_path):
    found = []
    for ours in (False, True):
        model = network(run_eagerly=not ours)
        set_random_seed(3)
        train, validation = (make(str(tmp_path / f"{ours}{kind}")) for kind in ("train", "validation"))
        fit = Trainer(model, validation=AHEAD).fit if ours else model.fit
        found.append(fit(train, validation_data=validation, epochs=4, verbose=0).history)
    assert_same_history(found[1], found[0])
