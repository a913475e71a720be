"""Which Python of Hugging Face's pipelines only looks rows up."""

from __future__ import annotations

import functools

import keras
import pytest
import tensorflow as tf

from overlap_train._data.pipeline import calls_python, draws_orders, looks_up_rows, python_draws_at_pass
from overlap_train._data.pipeline_parts import is_lookup, makes_passes_alike
from tests.whole_fits import library_sources

needs_datasets = pytest.mark.skipif(not library_sources.INSTALLED["datasets"], reason="lacks datasets")
pytestmark = pytest.mark.filterwarnings("ignore:::(datasets|fsspec|multiprocess|dill).*")


@pytest.mark.parametrize("function", [None, print, functools.partial(print, 1), len, lambda rows: rows, 3])
def test_a_function_of_anybody_else_is_no_lookup(function):
    assert not is_lookup(function)
    assert not makes_passes_alike(function)


@needs_datasets
@pytest.mark.parametrize(
    ("make", "lookup", "alike"),
    [
        (library_sources.table, True, True),
        (lambda: library_sources.table().map(lambda x, y: (x, y)).prefetch(2), True, True),
        (library_sources.collated, False, False),
        (library_sources.transformed, False, False),
        (library_sources.workers, False, True),
        (lambda: library_sources.workers().shuffle(3, seed=1), False, False),
        (lambda: library_sources.table().map(through_python), False, False),
    ],
)
def test_what_python_does_in_a_pipeline(make, lookup, alike):
    dataset = make()
    assert looks_up_rows(dataset) == lookup
    assert calls_python(dataset) != lookup
    assert python_draws_at_pass(dataset) == alike


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


def test_random_operations_elsewhere_decide_on_no_order():
    noisy = tf.data.Dataset.range(3).map(lambda row: tf.cast(row, tf.float32) + tf.random.normal([]))
    assert not draws_orders(noisy)
    assert not looks_up_rows(noisy)
