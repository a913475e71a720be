"""A fit that would draw otherwise after a resume, or cannot be stored, is refused or says so at once."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._fit.checkpointing import build_resumer
from overlap_train.parallel.hosts import Hosts
from tests.fit.requests import request_of
from tests.networks import linear
from tests.pools import sequential
from tests.whole_fits.comparing import VALIDATION, X, Y, counted, noisy, slices
from tests.whole_fits.test_own_methods import PassesOn


def held():
    return slices(*VALIDATION)


def generated():
    return noisy(tf.random.Generator.from_seed(5))


def a_cache_of_noise_and_noise():
    draws = generated()
    return {"x": slices().map(draws).cache().map(draws).repeat().batch(16), "steps_per_epoch": 5}


def a_cache_of_a_count():
    return {"x": slices().map(counted(tf.Variable(0))).batch(16).cache()}


def one_shuffle():
    shuffled = slices().shuffle(len(X), seed=3)
    return {"x": shuffled.skip(40).batch(16), "validation_data": shuffled.take(40).batch(16)}


def one_generator_in_a_pass_that_goes_on():
    draws = generated()
    return {
        "x": slices().map(draws).batch(16).repeat(),
        "steps_per_epoch": 5,
        "validation_data": held().map(draws).batch(16),
    }


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


def text_of_the_data():
    text = tf.Variable("a")

    def longer(x, y):
        text.assign(tf.strings.join([text.read_value(), "b"]))
        return x * tf.cast(tf.strings.length(text.read_value()), x.dtype), y

    return sequential(), slices().batch(16).map(longer), "Variable"


class Captures(keras.layers.Layer):
    def build(self, shape):
        self.captured = [tf.Variable(["a"], name="captured")]

    def call(self, x):
        return x * tf.cast(tf.strings.length(self.captured[0]), x.dtype)


def text_of_the_model():
    return linear(Captures), slices().batch(16), "captured"


@pytest.mark.parametrize("make", [text_of_the_data, text_of_the_model])
def test_a_variable_of_text_is_refused_before_anything_is_trained(make, tmp_path):
    model, data, name = make()
    before = model.get_weights()
    with pytest.raises(ValueError, match=f"resume cannot store the variable .*{name}.* of the type string"):
        Trainer(model).fit(data, resume=tmp_path, verbose=0)
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    Trainer(model).fit(data, verbose=0)


def evaluating():
    return linear(kind=PassesOn)


def one_generator_of_two_caches():
    draws = generated()
    sets = {"a": held().map(draws).cache().batch(16), "b": held().map(draws).batch(16)}
    return {"validation_data": sets}


def iterators_of_two_sets():
    sets = {}
    for name in "ab":
        numbers = iter(tf.data.Dataset.range(10**6))
        sets[name] = held().batch(16).map(lambda x, y, n=numbers: (x + tf.cast(next(n) % 7, x.dtype), y))
    return {"validation_data": sets}


def shuffled():
    return held().shuffle(91, seed=3)


def a_shuffle():
    return {"validation_data": shuffled().batch(16)}


def two_steps(make):
    return lambda: {"validation_data": make().batch(16), "validation_steps": 2}


@pytest.mark.parametrize(
    ("data", "make", "policy"),
    [
        (one_generator_of_two_caches, sequential, {}),
        (iterators_of_two_sets, sequential, {}),
        (a_shuffle, sequential, {"every_steps": 5}),
        (a_shuffle, evaluating, {}),
        (two_steps(lambda: shuffled().shuffle(9, seed=4)), sequential, {}),
        (two_steps(lambda: shuffled().cache()), sequential, {}),
        (two_steps(lambda: shuffled().repeat()), sequential, {}),
        (two_steps(lambda: held().map(generated()).cache()), sequential, {}),
    ],
)
def test_draws_of_a_validation_that_would_be_others_are_said(data, make, policy, tmp_path):
    trainer = Trainer(make(), validation=ValidationPolicy(**policy))
    trainer.fit(X, Y, **data(), epochs=1, verbose=0, resume=tmp_path)
    assert any("draws as it is read, or caches what it draws" in said for said in trainer.messages)


def test_what_is_alike_in_each_validation_is_taken(tmp_path):
    once = slices().shuffle(len(X), seed=3, reshuffle_each_iteration=False)
    trainer = Trainer(sequential(), validation=ValidationPolicy(every_steps=5))
    train, validation = once.skip(40).cache().map(generated()).batch(16), once.take(40).cache().batch(16)
    trainer.fit(train, epochs=1, validation_data=validation, resume=tmp_path, verbose=0)
    assert list(tmp_path.glob("ckpt-*"))
    assert not any("a resumed fit" in said for said in trainer.messages)


@pytest.mark.parametrize(("data", "passes"), [(a_shuffle, {}), (dict, {"": None})])
def test_on_several_hosts_no_validation_may_draw_whether_its_passes_are_counted(data, passes, monkeypatch):
    request = request_of(Trainer(sequential()), **data())
    monkeypatch.setattr(type(request.settings), "hosts", property(lambda _: Hosts(2)))
    with pytest.raises(ValueError, match="the validation data is drawn anew each time, on several hosts"):
        build_resumer(request, None, None, passes, print, None)
