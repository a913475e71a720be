"""What a pass depends on: seeds, variables and the state of Python, noted, stored and put back."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.pass_state import PassSeeds, PipelineVariables, seeds_of, unseeded_draws
from overlap_train._data.pipeline import captured_by

Dataset = tf.data.Dataset

pytestmark = pytest.mark.usefixtures("unseeded")


def shuffled(buffer=20, **options):
    return Dataset.range(60).shuffle(buffer, **options)


def pairs(*datasets):
    return Dataset.zip(datasets).map(lambda *each: each[0])


def order(iterator):
    return np.concatenate([np.ravel(batch) for batch in iterator]).tolist()


FOUND = {
    "alone": shuffled,
    "all rows": lambda: shuffled(1000),
    "under other stages": lambda: shuffled().map(lambda x: x, num_parallel_calls=2).batch(7).prefetch(1),
    "over a cache": lambda: Dataset.range(60).cache().shuffle(60).batch(10, drop_remainder=True),
    "two side by side": lambda: pairs(shuffled(), shuffled(30)),
    "of files": lambda: shuffled().interleave(lambda x: Dataset.from_tensors(x), cycle_length=3),
    "of a length that nobody knows": lambda: Dataset.range(120).filter(lambda x: x % 2 == 0).shuffle(60),
}

NOT_FOUND = {
    "seeded": (lambda: shuffled(seed=1), []),
    "no shuffle": (lambda: Dataset.range(9), []),
    "repeated": (lambda: shuffled().repeat().take(90), ["shuffle"]),
    "kept": (lambda: shuffled(reshuffle_each_iteration=False), ["shuffle once"]),
    "one of two seeded": (lambda: pairs(shuffled(), shuffled(seed=1)), ["shuffle"]),
    "one after another": (lambda: shuffled().shuffle(3), ["shuffle", "shuffle"]),
    "drawn in a function": (lambda: Dataset.range(9).map(lambda _: tf.random.uniform([])), ["RandomUniform"]),
    "numbers": (lambda: Dataset.random().take(9), ["Dataset.random"]),
    "not a dataset": (lambda: np.zeros(3), []),
}


@pytest.mark.by_default("over a cache", "alone")
@pytest.mark.parametrize("make", FOUND.values(), ids=FOUND)
def test_pipelines_made_in_two_processes_have_the_same_passes(make):
    one, other = PassSeeds.of(make()), PassSeeds.of(make())
    other.take(one.seed)
    passes = [order(one.iterator(number)) for number in range(3)]
    assert len(set(map(tuple, passes))) == 3
    assert all(sorted(each) == sorted(passes[0]) for each in passes)
    assert [order(other.iterator(number)) for number in (2, 0, 1)] == [passes[n] for n in (2, 0, 1)]
    assert sorted(passes[0]) == sorted(order(make()))


@pytest.mark.parametrize(("make", "draws"), NOT_FOUND.values(), ids=NOT_FOUND)
def test_what_cannot_be_given_a_seed_is_left_alone_and_told(make, draws):
    data = make()
    assert unseeded_draws(data) == draws
    assert not isinstance(data, Dataset) or PassSeeds.of(data) is None


def test_the_next_order_of_the_users_own_is_left_as_random_as_it_was():
    dataset = shuffled(60)
    seeds = PassSeeds.of(dataset)
    drawn = [order(each) for n in range(3) for each in (dataset, seeds.iterator(n), dataset)]
    assert len(set(map(tuple, drawn))) == 9


def test_a_global_seed_is_a_seed():
    keras.utils.set_random_seed(3)
    assert unseeded_draws(shuffled()) == []
    assert len(seeds_of(pairs(shuffled(), shuffled(seed=5)))) == 2
    assert seeds_of(shuffled(seed=4)) != seeds_of(shuffled(seed=5))
    tf.random.set_seed(None)
    assert seeds_of(shuffled()) == seeds_of(np.zeros(3)) == []


@pytest.mark.parametrize("seed", [None, -1, 1 << 63, 1.0, True, "1"])
def test_a_seed_of_a_file_that_is_none_is_refused(seed):
    with pytest.raises(ValueError, match="from which seed its shuffles draw"):
        PassSeeds.of(shuffled()).take(seed)


def counting():
    """Returns a dataset that counts what is drawn of it, and the count."""
    count = tf.Variable([0, 0], dtype=tf.int64)
    rows = tf.data.Dataset.range(3)
    return rows.map(lambda number: number + tf.reduce_sum(count.assign_add([1, 2]))), count


def test_a_pass_is_made_again_from_where_the_variables_stood():
    dataset, count = counting()
    drawn = PipelineVariables(captured_by(dataset))
    drawn.note(1)
    first = [int(each) for each in dataset]
    drawn.note(2)
    second = [int(each) for each in dataset]
    for number, expected in ((1, first), (2, second), (1, first)):
        drawn.put_back(number)
        assert [int(each) for each in dataset] == expected
    drawn.forget(2)
    with pytest.raises(ValueError, match="does not say where"):
        drawn.put_back(1)
    drawn.put_back(2)
    assert count.numpy().tolist() == [3, 6]


@pytest.mark.parametrize(
    "stored",
    [
        *(None, [], ["ab"], [np.zeros(2, "int32")], [np.zeros(3, "int64")]),
        [np.zeros(2, "int64"), np.zeros(2, "int64")],
    ],
)
def test_what_is_not_of_these_variables_is_refused(stored):
    drawn = PipelineVariables(captured_by(counting()[0]))
    with pytest.raises(ValueError, match="the variables of its pipeline are invalid"):
        drawn.take(1, stored)
