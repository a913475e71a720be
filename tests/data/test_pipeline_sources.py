"""What the functions of a pipeline draw from: datasets that they have captured, and Python."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data import pipeline
from overlap_train._data.array_feed import make_feed
from overlap_train._data.pipeline import calls_python, draws_orders, hides_a_source
from overlap_train._keras.data import recognize
from tests.whole_fits import library_sources

Dataset = tf.data.Dataset


def numbers():
    return Dataset.range(20)


def noisy(dataset):
    generator = tf.random.Generator.from_seed(3)
    return dataset.map(lambda i: i + generator.uniform([], 0, 100, tf.int64))


def counted(dataset):
    count = tf.Variable(0, dtype=tf.int64)
    return dataset.map(lambda i: i + count.assign_add(1))


def of_python():
    return Dataset.from_generator(lambda: iter(np.random.randint(0, 100, 5)), tf.int64)


def shuffled():
    return numbers().shuffle(20, seed=1)


class Holder:
    def __init__(self, dataset):
        self.dataset = dataset

    def __call__(self, i):
        return self.dataset


def within(dataset):
    return Dataset.range(2).flat_map(lambda i: dataset)


def first_of(dataset, number):
    return dataset.take(1).reduce(np.int64(0), lambda a, b: a + b + number)


DIFFERENT = {
    "shuffle": lambda: within(shuffled()),
    "part of a shuffle": lambda: within(shuffled().take(3)),
    "generator": lambda: within(noisy(numbers())),
    "counter": lambda: within(counted(numbers())),
    "python": lambda: within(of_python()),
    "an attribute": lambda: Dataset.range(2).interleave(Holder(shuffled())),
    "reduced in map": lambda: (lambda s: numbers().map(lambda i: first_of(s, i)))(shuffled()),
    "random numbers": lambda: Dataset.range(2).flat_map(lambda i: Dataset.random().take(5)),
    "an iterator": lambda: (lambda it: numbers().map(lambda i: i + next(it)))(iter(Dataset.range(70))),
    "a queue": lambda: queued(),
    "the clock": lambda: numbers().map(lambda i: tf.cast(tf.timestamp() * 1e6, tf.int64)),
}


def queued():
    queue = tf.queue.FIFOQueue(100, tf.int64, shapes=[[]])
    queue.enqueue_many(tf.range(100, dtype=tf.int64))
    return Dataset.range(5).map(lambda i: i + queue.dequeue())


def passes(dataset):
    return [[int(each) for each in dataset] for _ in range(3)]


@pytest.mark.by_default("a queue", "the clock", "part of a shuffle")
@pytest.mark.parametrize("name", DIFFERENT)
def test_passes_that_differ_are_known_to(name):
    tf.random.set_seed(None)
    dataset = DIFFERENT[name]()
    known = pipeline.is_repeatable(dataset)
    found = passes(dataset)
    assert found[0] != found[1] or found[1] != found[2]
    assert not known


@pytest.mark.parametrize("name", [n for n in DIFFERENT if n not in ("the clock", "random numbers")])
def test_what_cannot_be_put_back_is_not_rewindable(name):
    feed = make_feed(recognize(DIFFERENT[name]().batch(2)), hold_in_memory=lambda size: False)
    assert not feed.rewindable


def test_tables_files_and_draws_of_each_iterator_are_seen():
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1], tf.int64), tf.constant([2], tf.int64)), 0
    )
    for function in (
        table.lookup,
        lambda i: i + tf.random.uniform([], 0, 9, tf.int64),
        lambda i: tf.strings.length(tf.io.read_file(__file__)) + tf.cast(i, tf.int32),
        lambda i: tf.py_function(lambda x: x, [i], tf.int64),
    ):
        assert not hides_a_source(numbers().map(function))


def test_a_cache_that_holds_draws_is_not_filled_again():
    def cache(dataset):
        return dataset.cache()

    for draw in (noisy, counted, lambda d: d.map(lambda i: i + tf.random.uniform([], 0, 9, tf.int64))):
        assert pipeline.caches_draws(cache(draw(numbers())).batch(4))
    assert not pipeline.caches_draws(noisy(cache(numbers())))
    assert not pipeline.caches_draws(cache(numbers()))


needs_datasets = pytest.mark.skipif(not library_sources.INSTALLED["datasets"], reason="lacks datasets")

pytestmark = pytest.mark.filterwarnings("ignore:::(datasets|fsspec|multiprocess|dill).*")


@needs_datasets
@pytest.mark.parametrize(
    ("make", "lookup"),
    [
        (library_sources.table, True),
        (lambda: library_sources.table().map(lambda x, y: (x, y)).prefetch(2), True),
        (library_sources.collated, False),
        (library_sources.transformed, False),
        (lambda: library_sources.table(num_workers=2), False),
        (lambda: library_sources.table().map(through_python), False),
    ],
)
def test_what_python_does_in_a_pipeline(make, lookup):
    assert calls_python(make()) != lookup


def through_python(x, y):
    return tf.numpy_function(lambda value: value, [x], tf.float32), y


@needs_datasets
def test_an_order_of_an_unknown_seed_is_seen():
    tf.keras.backend.clear_session()
    tf.random.set_seed(None)
    assert draws_orders(library_sources.table(shuffle=True))
    keras.utils.set_random_seed(1)
    assert not draws_orders(library_sources.table(shuffle=True))
    assert not draws_orders(library_sources.table())
