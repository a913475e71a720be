"""Keras models taken apart: inputs, calls, work and outputs, and models that stay whole."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.calls import work_of
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Layer, LayerGraph, Port, Work
from overlap_train.scheduling.models import ModelInputs, WholeModel, inputs_of, split_model
from overlap_train.scheduling.preparing import ModelBuilder, tensorflow_platform
from overlap_train.scheduling.segments import choose_segments
from tests.scheduling.graphs import CLOSE, CORES, computed, with_pieces

kl = keras.layers


@pytest.mark.parametrize(
    ("layer", "shape", "kind", "flops"),
    [
        (kl.Conv1D(4, 3, padding="same", use_bias=False), (8, 2), "conv", 2 * 8 * 4 * 6),
        (kl.Conv2DTranspose(4, 2, strides=2, use_bias=False), (3, 3, 2), "conv", 2 * 36 * 4 * 8),
        (
            kl.SeparableConv2D(4, 3, padding="same", use_bias=False),
            (5, 5, 2),
            "conv",
            2 * 25 * (9 * 2 + 2 * 4),
        ),
        (kl.Dense(4, use_bias=False), (7, 3), "dense", 2 * 7 * 12),
        (kl.MaxPooling2D(), (4, 4, 3), "other", 12),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, kl.Layer) else None,
)
def test_each_kind_of_layer_has_its_operations(layer, shape, kind, flops):
    x = keras.Input(shape)
    work = work_of(layer, [x], [layer(x)])
    assert (work.kind, work.flops) == (kind, flops)


ONES = np.ones((2, 4), "float32")
RAGGED = tf.ragged.constant([[1.0] * 4, [1.0]])


class OwnCall(keras.Model):
    def call(self, inputs):
        return super().call(inputs)


def inputs(nest=list, kind=keras.Model, **options):
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right", **options)
    pair = {"right": right, "left": left} if nest is dict else nest((left, right))
    return inputs_of(kind(pair, [left, right]), (), "m")


@pytest.mark.parametrize(
    ("nest", "x"),
    [
        (list, [ONES, ONES * 2]),
        (tuple, [ONES, ONES * 2]),
        (list, {"right": ONES * 2, "left": ONES, "other": 1}),
        (dict, {"right": ONES * 2, "left": ONES}),
        (list, [tf.constant(ONES), keras.Variable(ONES * 2)]),
        (list, [ONES.astype("float64"), ONES.astype("uint8") * 2]),
    ],
    ids=["list", "tuple", "by-name", "dict", "tensors", "dtypes"],
)
def test_inputs_come_in_the_models_order_and_dtype(nest, x):
    left, right = inputs(nest).flatten("m", x)
    assert left.dtype == right.dtype == np.float32
    np.testing.assert_array_equal(left, ONES)
    np.testing.assert_array_equal(right, ONES * 2)


REFUSED = {
    "count": (list, [ONES], ValueError, "takes 2 inputs, got 1"),
    "name": (list, {"left": ONES}, ValueError, r"takes inputs named \['left', 'right'\], got \['left'\]"),
    "order": (dict, [ONES, ONES], ValueError, r"takes a dict with \['right', 'left'\]"),
    "shape": (list, [ONES, ONES[:, :3]], ValueError, r"'right' takes \(None, 4\), got the shape \(2, 3\)"),
    "batch": (list, [ONES, ONES[:1]], ValueError, "one batch dimension"),
    "no rows": (list, [ONES[:0], ONES[:0]], ValueError, "one batch dimension"),
    "no batch": (list, [np.float32(3), np.float32(3)], ValueError, "one batch dimension"),
    "text": (list, [ONES, np.full((2, 4), "1")], TypeError, "'right' takes float32, got <U1"),
    "complex": (list, [ONES, ONES * 1j], TypeError, "'right' takes float32, got complex64"),
    "list": (list, ONES.tolist() * 2, ValueError, "a list is one value for each input: pass an array"),
    "objects": (list, [ONES, np.full((2, 4), object())], TypeError, "'right' takes an array, got "),
    "sparse": (list, [ONES, tf.sparse.from_dense(ONES)], TypeError, "'right' takes an array, got "),
    "ragged": (list, [ONES, RAGGED], TypeError, "'right' takes an array, got "),
}


@pytest.mark.parametrize(("nest", "x", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(nest, x, error, said):
    with pytest.raises(error, match=said):
        inputs(nest).flatten("m", x)


OPTIONAL = keras.Input((4,), optional=True, name="extra")
SPARSE = keras.Input((4,), sparse=True, name="counts")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (keras.Sequential([kl.Dense(2)]), "a Sequential model that is not built .* keras.Input"),
        (OwnCall(), r"a subclassed model .* input_specs="),
        (keras.Model(SPARSE, kl.Dense(1)(SPARSE)), "the input 'counts' is sparse or ragged"),
        (keras.Model(OPTIONAL, kl.Identity()(OPTIONAL)), "the input 'extra' is optional"),
    ],
    ids=["not built", "subclassed", "sparse", "optional"],
)
def test_a_model_whose_inputs_are_not_known_or_cannot_be_arrays_is_told_how(model, said):
    with pytest.raises(ValueError, match=said):
        inputs_of(model, (), "m")


def branching_model():
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((4,), name="right")
    shared = keras.layers.Conv2D(4, 3, padding="same", name="shared")
    a = shared(left)
    b = keras.layers.BatchNormalization()(shared(left[:, ::-1] * 2.0))
    merged = keras.layers.GlobalAveragePooling2D()(keras.layers.Concatenate()([a, b]))
    dense = keras.layers.Dense(4)(right) + merged[:, :4]
    return keras.Model({"left": left, "right": right}, {"sum": dense, "map": keras.layers.ReLU()(a)})


@pytest.mark.by_default("2", "100")
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_branches_shared_layers_several_inputs_and_outputs_survive(size):
    model = branching_model()
    rng = np.random.default_rng(0)
    inputs = {"left": rng.random((2, 8, 8, 3), "float32"), "right": rng.random((2, 4), "float32")}
    split = split_model(model)
    count = len(split.graph)
    groups = [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
    got = computed(split, groups, inputs["left"], inputs["right"])
    want = keras.tree.flatten(model(inputs, training=False))
    for left, right in zip(got, want, strict=True):
        np.testing.assert_allclose(left, right, atol=CLOSE)


def whole(model):
    return WholeModel(model, "m", ModelInputs((tf.TensorSpec((None, 4)),)))


class Sees(keras.layers.Layer):
    """Notes in which phase it is called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x, training=None):
        self.seen.append(training)
        return x


class TrainsUnlessTold(Sees):
    """As layers do that augment images."""

    def call(self, x, training=True):
        return super().call(x, training)


@pytest.mark.parametrize(
    ("kind", "given", "seen"),
    [
        (Sees, {}, False),
        (Sees, {"training": False}, False),
        (Sees, {"training": True}, True),
        (TrainsUnlessTold, {}, False),
    ],
)
def test_the_call_is_one_of_inference_but_for_what_the_graph_trains(kind, given, seen):
    inputs, layer = keras.Input((4,)), kind()
    model = keras.Model(inputs, layer(inputs, **given))
    layer.seen.clear()
    whole(model)
    assert layer.seen == [seen]


def test_what_is_no_array_is_refused():
    class Ragged(keras.Model):
        def call(self, x):
            return tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill(tf.shape(x)[:1], 4))

    with pytest.raises(ValueError, match="m returns a RaggedTensor, which is no array"):
        whole(Ragged())


def alternating(count):
    layers = [Layer(str(i), Work("conv" if i % 2 else "norm"), (Port(i - 1),)) for i in range(count)]
    return LayerGraph(layers, [Port(count - 1)])


TWO = Platform((Device("c"), Device("g", "gpu")))


def test_layers_are_merged_where_a_call_costs_more_than_it_gains():
    graph = alternating(10)
    costs = FixedCosts(lambda x, d: 1e-3 if (x.work.kind == "conv") == (d.kind == "gpu") else 1.5e-3)
    assert len(choose_segments(graph, TWO, costs, call_s=1e-4)) == 10
    assert len(choose_segments(graph, TWO, costs, call_s=6e-4)) < 10
    assert choose_segments(graph, Platform((Device("c"),)), costs) == [range(10)]


def test_pieces_stay_alone_and_their_join_may_have_followers():
    graph = with_pieces(alternating(1)).pieces
    layers = [*graph.layers, Layer("after", Work("norm"), (Port(3),))]
    groups = choose_segments(LayerGraph(layers, [Port(4)]), CORES, FixedCosts(lambda *_: 1e-3))
    assert groups == [range(1), range(1, 2), range(2, 3), range(3, 5)]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("cut", 0, ValueError), ("fold", "yes", TypeError), ("zero_copy", None, TypeError)],
)
def test_what_cannot_be_meant_is_refused_by_name(name, value, error):
    with pytest.raises(error, match=f"{name} must be"):
        ModelBuilder(None, None, **{name: value})
    with pytest.raises(ValueError, match="cut=2 needs fold=True"):
        ModelBuilder(None, None, cut=2, fold=False)


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([Device("CPU:77")], ValueError, r"no device \['CPU:77'\]"),
        ((), ValueError, "devices is empty"),
        (["CPU:0"], TypeError, r"devices.* must be a .*Device"),
    ],
)
def test_devices_that_tensorflow_lacks_are_refused(devices, error, message):
    with pytest.raises(error, match=message):
        tensorflow_platform(devices)
