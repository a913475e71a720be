"""Passes over validation data are counted, and made again elsewhere."""

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._validation.passes import ValidationPasses
from tests.data.sources import make


def shuffled():
    return make(tf.data.Dataset.range(20).shuffle(20, seed=3).map(lambda n: (n, n)).batch(4))


def drawn(batches, most=None):
    stream = batches.begin()
    if most is not None:
        stream.limit(most)
    found = [np.asarray(batch[0]) for batch in iter(stream.draw, None)]
    return np.concatenate(found).tolist()


def passes_of(batches, said=None):
    return ValidationPasses({"": batches}, (said if said is not None else []).append)


def test_the_next_pass_is_that_of_the_other_process():
    first, then = shuffled(), shuffled()
    passes = passes_of(first)
    drawn(first), drawn(first, 2)
    stood = passes.standing()
    passes_of(then).go_on(stood)
    assert drawn(then) == drawn(first)
    assert passes_of(then).standing().keys() == stood.keys()


@pytest.mark.parametrize(
    "stood",
    [
        *(None, {}, {"other": {"made": 1}}, {"": None}, {"": {"made": -1}}, {"": {"made": 10**9}}),
    ],
    ids=repr,
)
def test_what_makes_no_sense_is_refused(stood):
    with pytest.raises(ValueError, match="its validation data"):
        passes_of(shuffled()).go_on(stood)
