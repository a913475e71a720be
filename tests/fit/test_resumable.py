"""A fit whose data would draw otherwise after a resume is refused before it begins."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import VALIDATION_ROWS, arrays
from tests.pools import sequential

X, Y = arrays()
HELD = arrays(VALIDATION_ROWS, 1)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def held():
    return tf.data.Dataset.from_tensor_slices(HELD)


def noisy(generator):
    return lambda x, y: (x + generator.normal(tf.shape(x)), y)


def generated():
    return tf.random.Generator.from_seed(5)


def a_cache_of_noise():
    return {"x": rows().map(noisy(generated())).cache().batch(16)}


def a_cache_of_noise_and_noise():
    draws = noisy(generated())
    return {"x": rows().map(draws).cache().map(draws).repeat().batch(16), "steps_per_epoch": 5}


def a_cache_of_a_count():
    count = tf.Variable(0)
    counted = rows().map(lambda x, y: (x * tf.cast(count.assign_add(1) % 7, x.dtype), y))
    return {"x": counted.batch(16).cache()}


def a_cached_file(tmp_path):
    return {"x": rows().map(noisy(generated())).cache(str(tmp_path / "cache")).batch(16)}


def one_shuffle():
    shuffled = rows().shuffle(len(X), seed=3)
    return {"x": shuffled.skip(40).batch(16), "validation_data": shuffled.take(40).batch(16)}


def one_generator_in_a_pass_that_goes_on():
    draws = noisy(generated())
    return {
        "x": rows().map(draws).batch(16).repeat(),
        "steps_per_epoch": 5,
        "validation_data": held().map(draws).batch(16),
    }


def one_generator_beneath_a_cache():
    draws = noisy(generated())
    return {"x": rows().map(draws).batch(16), "validation_data": held().map(draws).cache().batch(16)}


def one_generator_of_two_caches():
    draws = noisy(generated())
    sets = {"a": held().map(draws).cache().batch(16), "b": held().map(draws).batch(16)}
    return {"x": rows().batch(16), "validation_data": sets}


def one_shuffle_of_two_sets():
    shuffled = held().shuffle(20, seed=1)
    sets = {"a": shuffled.shuffle(9).take(40).batch(16), "b": shuffled.take(9).batch(16)}
    return {"x": rows().batch(16), "validation_data": sets}


def iterators_of_two_sets():
    sets = {}
    for name in "ab":
        numbers = iter(tf.data.Dataset.range(10**6))
        sets[name] = held().batch(16).map(lambda x, y, n=numbers: (x + tf.cast(next(n) % 7, x.dtype), y))
    return {"x": rows().batch(16), "validation_data": sets}


REFUSED = {
    a_cache_of_noise: "caches what it draws",
    a_cache_of_noise_and_noise: "caches what it draws",
    a_cache_of_a_count: "caches what it draws",
    one_shuffle: "come from one shuffle",
    one_generator_in_a_pass_that_goes_on: "in the middle of a pass",
    iterators_of_two_sets: "'a' and 'b' may share",
}


def refused(tmp_path, match, trainer=None, **data):
    trainer = trainer or Trainer(sequential())
    with pytest.raises(ValueError, match=f"resume cannot draw again what this data draws: .*{match}"):
        trainer.fit(**data, epochs=1, verbose=0, resume=tmp_path)
    assert not list(tmp_path.glob("ckpt-*"))


@pytest.mark.by_default("a_cache_of_noise_and_noise")
@pytest.mark.parametrize("data", REFUSED, ids=lambda data: data.__name__)
def test_draws_that_would_be_others_are_refused(data, tmp_path):
    refused(tmp_path, REFUSED[data], **data())


@pytest.mark.by_default("one_shuffle_of_two_sets")
@pytest.mark.parametrize(
    "data", [one_generator_beneath_a_cache, one_generator_of_two_caches, one_shuffle_of_two_sets]
)
def test_draws_of_a_validation_that_would_be_others_are_said(data, tmp_path):
    trainer = Trainer(sequential())
    trainer.fit(**data(), epochs=1, verbose=0, resume=tmp_path)
    assert any("draws as it is read, or caches what it draws" in said for said in trainer.messages)


def test_a_file_of_noise_is_refused(tmp_path):
    refused(tmp_path, "caches what it draws", **a_cached_file(tmp_path))


def test_shuffles_are_refused_for_validations_inside_epochs(tmp_path):
    trainer = Trainer(sequential(), validation=ValidationPolicy(every_steps=5))
    data = {"x": X, "y": Y, "validation_data": held().shuffle(20, seed=1).batch(16)}
    refused(tmp_path, "validations inside epochs", trainer, **data)


class Evaluates(keras.Sequential):
    def evaluate(self, *args, **kwargs):
        return super().evaluate(*args, **kwargs)


def test_shuffles_are_refused_for_an_evaluate_of_the_models_own(tmp_path):
    model = Evaluates([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = {"x": X, "y": Y, "validation_data": held().shuffle(20, seed=1).batch(16)}
    refused(tmp_path, "an evaluate of the model's own", Trainer(model), **data)


def test_what_is_alike_in_each_validation_is_taken(tmp_path):
    once = rows().shuffle(len(X), seed=3, reshuffle_each_iteration=False)
    policy = ValidationPolicy(every_steps=5)
    Trainer(sequential(), validation=policy).fit(
        once.skip(40).cache().map(noisy(generated())).batch(16),
        epochs=1,
        validation_data=once.take(40).cache().batch(16),
        resume=tmp_path,
        verbose=0,
    )
    assert list(tmp_path.glob("ckpt-*"))
