"""The choice among algorithms, for shapes that are known, assumed or unknown, and types that are not ours."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.conv import convolution as module
from overlap_train.conv.convolution import ASSUMED_BATCH, Convolution, may_run_natively
from overlap_train.conv.shapes import DIRECTIONS, MATMUL, STOCK, ConvKey

PLAIN = Convolution((1, 1), "SAME", relu=True, bias=True)
IMAGE, FILTERS = tf.TensorShape([2, 9, 7, 3]), tf.TensorShape([3, 3, 3, 4])


@pytest.fixture
def library(monkeypatch):
    """Stands in for the compiled library, which may be missing or lack CUDA."""
    made = SimpleNamespace(available=True, cuda=False, gpus=[], warned=0)
    monkeypatch.setattr(module.library, "is_available", lambda: made.available)
    monkeypatch.setattr(module.library, "has_cuda", lambda: made.cuda)
    monkeypatch.setattr(
        module.library, "warn_unavailable_once", lambda: setattr(made, "warned", made.warned + 1)
    )
    monkeypatch.setattr(module.tf.config, "list_physical_devices", lambda kind: made.gpus)
    return made


@pytest.fixture
def timed(monkeypatch):
    """Returns the keys that were to be timed; the answer is "direct"."""
    keys = []

    def choose(key, function):
        keys.append((key, function))
        return "direct"

    monkeypatch.setattr(module.selection, "choose", choose)
    return keys


def test_a_key_says_what_is_computed_in_a_direction():
    forward, *backward = (PLAIN.key(direction, tf.float32, IMAGE, FILTERS) for direction in DIRECTIONS)
    assert (forward.bias, forward.relu, forward.batch_assumed) == (True, True, False)
    assert (forward.input_shape, forward.filter_shape) == ((2, 9, 7, 3), (3, 3, 3, 4))
    assert [(key.bias, key.relu) for key in backward] == [(False, False)] * 2
    assert Convolution.of(forward) == PLAIN


@pytest.mark.parametrize(("hint", "batch"), [(None, ASSUMED_BATCH), (32, 32)])
def test_an_unknown_batch_is_assumed(hint, batch):
    made = Convolution((1, 1), "SAME", relu=False, bias=False, batch_hint=hint)
    key = made.key("forward", tf.float32, tf.TensorShape([None, 9, 7, 3]), FILTERS)
    assert (key.input_shape, key.batch_assumed) == ((batch, 9, 7, 3), True)


@pytest.mark.parametrize(
    ("image", "filters"),
    [
        (tf.TensorShape([2, None, 7, 3]), FILTERS),
        (tf.TensorShape(None), FILTERS),
        (IMAGE, tf.TensorShape([3, 3, None, 4])),
    ],
)
def test_an_unknown_shape_has_no_key(image, filters):
    assert PLAIN.key("forward", tf.float32, image, filters) is None


def test_auto_has_a_known_shape_timed_without_help_from_other_threads(library, timed, monkeypatch):
    shared, stock = [], Convolution.function
    monkeypatch.setattr(
        Convolution, "function", lambda self, *rest: shared.append(self.share) or stock(self, *rest)
    )
    assert PLAIN.choose("forward", tf.float32, IMAGE, FILTERS) == "direct"
    ((key, function),) = timed
    assert key == PLAIN.key("forward", tf.float32, IMAGE, FILTERS)
    assert function(STOCK)(tf.ones(IMAGE), tf.ones(FILTERS), tf.ones([4])).shape == (2, 9, 7, 4)
    assert shared == [False]


def test_who_names_an_algorithm_gets_it_untimed(library, timed):
    named = Convolution((1, 1), "SAME", relu=False, bias=False, algorithm="winograd")
    assert named.choose("forward", tf.float16, IMAGE, FILTERS) == "winograd"
    assert timed == []


@pytest.mark.parametrize(
    ("strides", "filters", "chosen"),
    [
        ((1, 1), [3, 3, 16, 16], "winograd"),
        ((1, 1), [3, 3, 8, 16], STOCK),
        ((1, 1), [1, 1, 64, 64], STOCK),
        ((2, 2), [3, 3, 16, 16], STOCK),
        ((1, 1), None, STOCK),
        ((1, 1), [3, 3, None, 16], STOCK),
    ],
)
def test_without_a_key_deep_ones_are_guessed(library, timed, strides, filters, chosen):
    made = Convolution(strides, "SAME", relu=False, bias=False)
    image = tf.TensorShape([None, None, None, None])
    assert made.choose("forward", tf.float32, image, tf.TensorShape(filters)) == chosen
    assert timed == []


@pytest.mark.parametrize(
    ("dtype", "gpus", "cuda", "expected"),
    [
        (tf.float32, [], False, True),
        (tf.float64, [], False, True),
        (tf.float16, [], False, False),
        (tf.float32, ["GPU"], False, False),
        (tf.float32, ["GPU"], True, True),
        (tf.float64, ["GPU"], True, False),
    ],
)
def test_our_kernels_run_where_the_tensors_are(library, dtype, gpus, cuda, expected):
    library.gpus, library.cuda = gpus, cuda
    assert may_run_natively(dtype) is expected
    assert library.warned == 0


def test_a_library_that_cannot_be_had_is_told_and_done_without(library, timed):
    library.available = False
    assert PLAIN.choose("forward", tf.float32, IMAGE, FILTERS) == STOCK
    assert (library.warned, timed) == (1, [])
    assert not may_run_natively(tf.float16)
    assert library.warned == 1


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_direction_has_its_operands(direction):
    made = Convolution((2, 2), "VALID", relu=False, bias=True)
    key = ConvKey(direction, "float32", (2, 9, 7, 3), (3, 3, 3, 4), (2, 2), "VALID")
    x, filters, dz = tf.ones(IMAGE), tf.ones(FILTERS), tf.ones(key.output_shape)
    run = made.function(direction, STOCK, key)
    given = {
        "forward": (x, filters, tf.ones([4])),
        "input_gradient": (filters, dz),
        "filter_gradient": (x, dz),
    }[direction]
    shapes = {"forward": key.output_shape, "input_gradient": IMAGE, "filter_gradient": FILTERS}
    assert run(*given).shape == shapes[direction]


@pytest.mark.parametrize("algorithm", [STOCK, MATMUL])
def test_bias_and_activation_follow_the_convolution(algorithm):
    x = tf.constant([[[[1.0, -2.0]]]])
    filters, bias = tf.constant([[[[1.0, 1.0], [0.0, 1.0]]]]), tf.constant([0.5, 0.5])
    made = [Convolution((1, 1), "SAME", relu=relu, bias=True) for relu in (False, True)]
    plain, rectified = (np.ravel(each.forward(algorithm, x, filters, bias)).tolist() for each in made)
    assert (plain, rectified) == ([1.5, -0.5], [1.5, 0.0])
