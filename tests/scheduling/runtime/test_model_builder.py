"""How a model is prepared, and how what users pass becomes its tensors."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.scheduling import CostModel, Device
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.preparing import ModelBuilder, Preparation

ONE = [Device("CPU:0")]


def chain(layers=6):
    inputs = x = keras.Input((3,))
    for _ in range(layers):
        x = keras.layers.ReLU()(x)
    return keras.Model(inputs, x)


def two():
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    return keras.Model([left, right], {"out": keras.layers.Concatenate()([left, right])})


def built(model, costs=None, **preparation):
    builder = ModelBuilder(ONE, costs, Preparation(**preparation))
    return builder.build("m", model, 7, 3), builder


@pytest.mark.parametrize(
    ("segments", "lengths"),
    [("whole", [6]), ("layers", [1] * 6), (2, [3, 3]), (4, [2, 1, 1, 2]), (99, [1] * 6)],
)
def test_segments_are_as_asked_for(segments, lengths):
    model, _ = built(chain(), segments=segments)
    assert [len(layer.work.single_parts()) for layer in model.graph.layers] == lengths
    assert (model.name, model.max_pending, model.max_batch) == ("m", 7, 3)


def test_by_default_neighbours_on_one_device_are_one_segment():
    model, _ = built(chain())
    assert len(model.graph) == 1


@pytest.mark.parametrize(
    ("costs", "profile", "profiled"),
    [(None, None, False), (None, True, True), (CostModel(), None, False), (CostModel(), True, True)],
)
def test_layers_are_timed_one_by_one_where_it_was_asked_for(costs, profile, profiled, monkeypatch):
    singles = []
    stock = ModelBuilder._profile_single
    monkeypatch.setattr(
        ModelBuilder, "_profile_single", lambda self, *rest: singles.append(1) or stock(self, *rest)
    )
    _, builder = built(chain(2), costs, profile=profile)
    assert bool(singles) is profiled
    assert costs is None or builder.costs is costs


def test_costs_that_do_not_learn_are_left_alone():
    costs = FixedCosts(lambda layer, device: 1.0)
    _, builder = built(chain(2), costs, profile=True)
    assert builder.costs is costs
    with pytest.raises(TypeError, match="costs"):
        ModelBuilder(ONE, 3, Preparation())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("segments", "some", ValueError),
        ("segments", 0, ValueError),
        ("segments", 1.5, TypeError),
        ("cut", 0, ValueError),
        ("longest_segment_s", -1.0, ValueError),
        ("constant_weights", "yes", TypeError),
        ("profile", "yes", TypeError),
        ("zero_copy", None, TypeError),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(name, value, error):
    with pytest.raises(error, match=f"{name} must be"):
        Preparation(**{name: value})


def test_a_cut_is_not_put_together_again():
    assert Preparation(cut=2, segments="layers").cut == 2
    with pytest.raises(ValueError, match="cut=2 needs segments='auto' or 'layers'; 'whole' would put"):
        Preparation(cut=2, segments="whole")


@pytest.fixture(scope="module")
def taken_apart():
    model, builder = built(two(), segments="whole")
    return model, builder


LEFT, RIGHT = np.ones((4, 2)), np.zeros((4, 3))


@pytest.mark.parametrize(
    "x",
    [[LEFT, RIGHT], (LEFT, RIGHT), {"right": RIGHT, "left": LEFT}],
    ids=["list", "tuple", "by name"],
)
def test_inputs_come_in_the_models_order_and_type(taken_apart, x):
    left, right = taken_apart[0].flatten(x)
    assert (left.shape, right.shape, left.dtype) == ((4, 2), (4, 3), np.float32)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([LEFT], "'m' takes 2 inputs, got 1"),
        (
            [LEFT, RIGHT[:3]],
            r"size above 0, got shapes \[\(4, 2\), \(3, 3\)\]",
        ),
        ([LEFT[:0], RIGHT[:0]], "one batch dimension"),
        ([1.0, 2.0], "one batch dimension"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(taken_apart, x, message):
    with pytest.raises(ValueError, match=message):
        taken_apart[0].flatten(x)


def test_outputs_are_nested_as_the_models_are(taken_apart):
    assert taken_apart[0].pack((3,)) == {"out": 3}
    assert built(chain(1), segments="whole")[0].pack((3,)) == 3


@pytest.mark.parametrize("zero_copy", [False, True])
def test_tensors_lie_on_the_host_and_in_place_where_that_is_asked_for(zero_copy):
    builder = ModelBuilder(ONE, None, Preparation(zero_copy=zero_copy))
    array = np.frombuffer(bytearray(4 * 64), "float32")  # which may not be aligned
    ones = np.ones((8, 8), "float32")
    for given in (array, ones):
        (tensor,) = builder.tensors((given,))
        assert tensor.device.endswith("CPU:0")
        np.testing.assert_array_equal(tensor, given)
