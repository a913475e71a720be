"""Folded convolutions compute what the layers did, and the model stays as it was."""

import keras
import numpy as np
import pytest

from overlap_train.scheduling import Device, MultiModelScheduler, Platform
from overlap_train.scheduling.models import split_model
from tests.scheduling.graphs import computed

kl = keras.layers
ONE = Platform((Device("CPU:0"),))


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(0)


def norm(name=None, **options):
    """A BatchNormalization that has been trained."""
    names = ("gamma", "beta", "moving_mean")
    return kl.BatchNormalization(
        **{
            f"{each}_initializer": keras.initializers.RandomNormal(0.5, seed=n)
            for n, each in enumerate(names)
        },
        moving_variance_initializer=keras.initializers.RandomUniform(0.5, 2.0, seed=4),
        name=name,
        **options,
    )


def conv(filters=4, size=3, **options):
    return kl.Conv2D(filters, size, padding="same", bias_initializer="random_normal", **options)


def residual(x):
    y = norm()(conv(3)(kl.ReLU()(norm()(conv(3, use_bias=False)(x)))))
    return kl.Activation("relu")(kl.Add()([x, y]))


def both_sides(x):
    """A block whose shortcut is a convolution too; only one of the two can take in the addition."""
    return kl.ReLU()(kl.Add()([norm()(conv()(x)), norm()(conv(size=1)(x))]))


def both_sides_before_norm(x):
    """The addition is the last that is taken in, as what follows has two readers (ResNet50V2)."""
    y = kl.Add()([conv()(x), conv(size=1)(x)])
    return kl.Add()([y, kl.ReLU()(norm()(y))])


def read_twice(x):
    y = conv()(x)
    return kl.Concatenate()([y, norm()(y)])


def returned(x):
    y = conv()(x)
    return [y, norm()(y)]


def broadcast(x):
    return kl.Add()([conv(1)(x), conv(4)(x)])


FOLDED = {  # what is built, and the calls that are left
    "bias and ReLU": (lambda x: kl.ReLU()(conv()(x)), 1),
    "BatchNormalization": (lambda x: kl.Activation("relu")(norm()(conv()(x))), 1),
    "BatchNormalization without scale": (lambda x: norm(scale=False, center=False)(conv()(x)), 1),
    "another activation": (lambda x: kl.Activation("gelu")(norm()(conv()(x))), 1),
    "a clipped ReLU": (lambda x: kl.ReLU(max_value=0.5)(norm()(conv()(x))), 1),
    "strides": (lambda x: norm()(conv(strides=2)(x)), 1),
    "a depthwise convolution": (
        lambda x: kl.ReLU()(norm()(kl.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)(x))),
        1,
    ),
    "a dense layer": (lambda x: kl.ReLU()(norm()(kl.Dense(5)(x))), 1),
    "double precision": (lambda x: norm(dtype="float64")(conv(dtype="float64")(x)), 1),
    "a residual": (residual, 2),
    "a residual from a convolution": (both_sides, 2),
    "a residual from a convolution, read twice": (both_sides_before_norm, 5),
    "nothing behind an activation": (lambda x: norm()(conv(activation="relu")(x)), 2),
    "nothing behind a tensor that is read twice": (read_twice, 3),
    "nothing behind an output of the model": (returned, 2),
    "no addition of another shape": (broadcast, 3),
    "no BatchNormalization of another axis": (lambda x: norm(axis=1)(conv()(x)), 2),
    "no dilation": (lambda x: norm()(conv(dilation_rate=2)(x)), 2),
    "no half precision": (lambda x: norm(dtype="mixed_bfloat16")(conv(dtype="mixed_bfloat16")(x)), 2),
    "a model in the model": (lambda x: keras.Sequential([conv(), norm()])(x), 1),
}


def network(build):
    x = keras.Input((8, 9, 3))
    return keras.Model(x, build(x))


def examples(count=2):
    return np.random.default_rng(0).standard_normal((count, 8, 9, 3)).astype("float32")


@pytest.mark.parametrize(("build", "calls"), FOLDED.values(), ids=FOLDED)
def test_a_folded_model_computes_the_same_in_fewer_calls(build, calls):
    model, x = network(build), examples()
    want = keras.tree.flatten(model(x, training=False))
    before = [np.array(variable) for variable in model.variables]
    split = split_model(model, fold=True)
    assert len(split.graph) == calls
    got = computed(split, [range(calls)], x)
    tolerance = 1e-2 if "bfloat16" in str(model.layers[-1].dtype_policy) else 1e-5
    for ours, theirs, again in zip(got, want, keras.tree.flatten(model(x, training=False)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(again, theirs)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_what_computes_something_else_is_run_as_it_is(monkeypatch, caplog):
    from overlap_train.scheduling.calls import Product

    weights = Product.weights
    monkeypatch.setattr(Product, "weights", lambda self: tuple(1.01 * w for w in weights(self)))
    model, x = network(lambda x: kl.ReLU()(norm()(conv()(x)))), examples()
    with MultiModelScheduler({"m": model}, devices=ONE) as scheduler:
        np.testing.assert_allclose(scheduler.submit("m", x).result(60), model(x), rtol=1e-5, atol=1e-5)
    assert "computes something else" in caplog.text


def test_without_folding_later_weights_are_seen():
    model, x = network(lambda x: norm()(conv()(x))), examples()
    with MultiModelScheduler({"m": model}, devices=ONE, fold=False) as scheduler:
        model.layers[1].kernel.assign(model.layers[1].kernel * 2.0)
        got = scheduler.submit("m", x).result(60)
    np.testing.assert_allclose(got, model(x, training=False), rtol=1e-4, atol=1e-4)


class Centred(kl.Layer):
    """Rows depend on each other."""

    def call(self, x):
        return x - keras.ops.mean(x, axis=0)


@pytest.mark.parametrize(
    ("build", "alone"), [(kl.Flatten(), False), (Centred(), True)], ids=["rows", "batch"]
)
def test_the_number_of_examples_is_measured_and_one_where_rows_depend_on_each_other(
    build, alone, monkeypatch
):
    monkeypatch.setattr("overlap_train.scheduling.preparing.Profile.total_s", 1e-3)  # more cost nothing more
    with MultiModelScheduler({"m": network(build)}, devices=ONE) as scheduler:
        assert scheduler._service.model("m").max_batch == (1 if alone else 8)
