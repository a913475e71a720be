"""What is found out about a pipeline is found out once, and does not hold the pipeline."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._data.pipeline_parts import looked_up_once, without_autotune


def rows(count=6):
    return tf.data.Dataset.from_tensor_slices(np.arange(float(count))).batch(2)


def test_a_fact_is_found_once_for_each_pipeline():
    asked = []

    @looked_up_once
    def size(dataset):
        asked.append(dataset)
        return int(dataset.cardinality())

    one, other = rows(6), rows(8)
    assert [size(one), size(other), size(one), size(other)] == [3, 4, 3, 4]
    assert [a is b for a, b in zip(asked, (one, other), strict=True)] == [True, True]


def test_a_pipeline_without_autotune_has_the_facts_of_the_users():
    asked = []

    @looked_up_once
    def seen(dataset):
        asked.append(dataset)
        return len(asked)

    dataset = rows()
    for _ in range(2):
        assert seen(dataset) == seen(without_autotune(dataset)) == 1
    assert seen(without_autotune(rows())) == 2
    chosen = tf.data.Options()
    chosen.deterministic = False
    assert seen(dataset.with_options(chosen)) == 3, "options of the user's own make another pipeline"


def test_what_is_no_dataset_is_looked_at_each_time():
    asked = []

    @looked_up_once
    def seen(data):
        asked.append(data)
        return len(asked)

    assert [seen([1]), seen([1]), seen(None)] == [1, 2, 3]


def test_each_pass_of_the_kept_pipeline_gives_the_batches():
    dataset = rows()
    for _ in range(3):
        drawn = [batch.numpy().tolist() for batch in without_autotune(dataset)]
        assert drawn == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


@pytest.mark.parametrize("used", [lambda d: None, without_autotune, lambda d: list(without_autotune(d))])
def test_a_pipeline_goes_when_its_user_lets_go_of_it(used):
    gc.collect()
    gc.disable()
    try:
        dataset = rows()
        used(dataset)
        gone = weakref.ref(dataset)
        del dataset
        assert gone() is None, "its arrays would stay until somebody collects garbage"
    finally:
        gc.enable()
