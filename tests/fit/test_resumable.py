"""A fit whose data would draw otherwise after a resume is refused before it begins."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._fit.checkpointing import build_resumer
from tests.fit.requests import request_of
from tests.networks import VALIDATION_ROWS, arrays
from tests.parallel.together import ThreadHost
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


def a_cache_of_noise_and_noise():
    draws = noisy(generated())
    return {"x": rows().map(draws).cache().map(draws).repeat().batch(16), "steps_per_epoch": 5}


def a_cache_of_a_count():
    count = tf.Variable(0)
    counted = rows().map(lambda x, y: (x * tf.cast(count.assign_add(1) % 7, x.dtype), y))
    return {"x": counted.batch(16).cache()}


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


def one_generator_of_two_caches():
    draws = noisy(generated())
    sets = {"a": held().map(draws).cache().batch(16), "b": held().map(draws).batch(16)}
    return {"x": rows().batch(16), "validation_data": sets}


def iterators_of_two_sets():
    sets = {}
    for name in "ab":
        numbers = iter(tf.data.Dataset.range(10**6))
        sets[name] = held().batch(16).map(lambda x, y, n=numbers: (x + tf.cast(next(n) % 7, x.dtype), y))
    return {"x": rows().batch(16), "validation_data": sets}


REFUSED = {
    a_cache_of_noise_and_noise: "caches what it draws",
    a_cache_of_a_count: "caches what it draws",
    one_shuffle: "share a shuffle; one for each",
    one_generator_in_a_pass_that_goes_on: "share the variable .*; one for each",
}


@pytest.mark.by_default("a_cache_of_noise_and_noise", "one_generator_in_a_pass_that_goes_on")
@pytest.mark.parametrize("data", REFUSED, ids=lambda data: data.__name__)
def test_draws_that_would_be_others_are_refused(data, tmp_path):
    with pytest.raises(ValueError, match=f"resume cannot draw again what this data draws: .*{REFUSED[data]}"):
        Trainer(sequential()).fit(**data(), epochs=1, verbose=0, resume=tmp_path)
    assert not list(tmp_path.glob("ckpt-*"))


class Evaluates(keras.Sequential):
    def evaluate(self, *args, **kwargs):
        return super().evaluate(*args, **kwargs)


def evaluating():
    model = Evaluates([keras.Input((X.shape[1],)), keras.layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def a_shuffle():
    return {"x": X, "y": Y, "validation_data": held().shuffle(20, seed=1).batch(16)}


@pytest.mark.parametrize(
    ("data", "make", "policy"),
    [
        (one_generator_of_two_caches, sequential, {}),
        (iterators_of_two_sets, sequential, {}),
        (a_shuffle, sequential, {"every_steps": 5}),
        (a_shuffle, evaluating, {}),
    ],
)
def test_draws_of_a_validation_that_would_be_others_are_said(data, make, policy, tmp_path):
    trainer = Trainer(make(), validation=ValidationPolicy(**policy))
    trainer.fit(**data(), epochs=1, verbose=0, resume=tmp_path)
    assert any("draws as it is read, or caches what it draws" in said for said in trainer.messages)


def test_what_is_alike_in_each_validation_is_taken(tmp_path):
    once = rows().shuffle(len(X), seed=3, reshuffle_each_iteration=False)
    trainer = Trainer(sequential(), validation=ValidationPolicy(every_steps=5))
    trainer.fit(
        once.skip(40).cache().map(noisy(generated())).batch(16),
        epochs=1,
        validation_data=once.take(40).cache().batch(16),
        resume=tmp_path,
        verbose=0,
    )
    assert list(tmp_path.glob("ckpt-*"))
    assert not any("a resumed fit" in said for said in trainer.messages)


@pytest.mark.parametrize(("data", "counted"), [(a_shuffle, {}), (dict, {"": None})])
def test_on_several_hosts_no_validation_may_draw_whether_its_passes_are_counted(data, counted, monkeypatch):
    request = request_of(Trainer(sequential()), **data())
    several = property(lambda _: ThreadHost(0, [None, None], None))
    monkeypatch.setattr(type(request.settings), "hosts", several)
    with pytest.raises(ValueError, match="the validation data is drawn anew each time, on several hosts"):
        build_resumer(request, None, None, counted, print, None)
