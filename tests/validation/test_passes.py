"""Passes over validation data are counted, and made again elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._validation.passes import ValidationPasses
from tests.data.sources import make


def shuffled():
    return make(tf.data.Dataset.range(20).shuffle(20, seed=3).map(lambda n: (n, n)).batch(4))


def cached():
    generator = tf.random.Generator.from_seed(1)
    return make(tf.data.Dataset.range(8).map(lambda n: (generator.normal([1]), n)).cache().batch(4))


def drawn(batches, most=None):
    stream = batches.begin()
    if most is not None:
        stream.limit(most)
    found = [np.asarray(batch[0]) for batch in iter(stream.draw, None)]
    stream.finish()
    return np.concatenate(found).tolist()


def passes_of(batches, said=None):
    return ValidationPasses({"": batches}, (said if said is not None else []).append)


@pytest.mark.parametrize("source", [shuffled, cached])
def test_the_next_pass_is_that_of_the_other_process(source):
    first, then = source(), source()
    passes = passes_of(first)
    drawn(first), drawn(first, 2)
    stood = passes.standing()
    passes_of(then).go_on(stood)
    assert drawn(then) == drawn(first)
    assert passes_of(then).standing().keys() == stood.keys()


def test_a_cache_is_filled_from_what_it_was_filled_from_and_tells_so_again():
    said, first, then = [], cached(), cached()
    passes = passes_of(first)
    drawn(first)
    stood = passes.standing()
    again = passes_of(then, said)
    again.go_on(stood)
    assert "the batches of 1 validations are drawn again" in said[0]
    np.testing.assert_array_equal(again.standing()[""]["variables"][0], stood[""]["variables"][0])


@pytest.mark.parametrize(
    "stood",
    [
        *(None, {}, {"other": {"made": 1, "passes": []}}, {"": None}, {"": {"made": -1, "passes": []}}),
        *({"": {"made": True, "passes": []}}, {"": {"made": 10**9, "passes": []}}, {"": {"made": 1}}),
        *({"": {"made": 1, "passes": [3]}}, {"": {"made": 1, "passes": [(1, 1)]}}),
        {"": {"made": 1, "passes": [(1, True)], "variables": [np.zeros(2)]}},
    ],
    ids=repr,
)
def test_what_makes_no_sense_is_refused(stood):
    with pytest.raises(ValueError, match=r"its validation data|the variables of its pipeline are invalid"):
        passes_of(cached()).go_on(stood)


def test_data_that_has_become_shorter_is_refused():
    batches = cached()
    passes = passes_of(batches)
    stood = passes.standing()
    stood[""]["passes"] = [(9, True)]
    with pytest.raises(ValueError, match="ended before batch 9"):
        passes.go_on(stood)
