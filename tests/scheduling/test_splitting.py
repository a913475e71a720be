"""Keras models taken apart: inputs, calls, work and outputs, and models that stay whole."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import Device, Platform
from overlap_train.scheduling.calls import calls_of, elements, tensor_bytes, work_of
from overlap_train.scheduling.graph import Port
from overlap_train.scheduling.models import ModelInputs, WholeModel, inputs_of, spec_of, split_model
from overlap_train.scheduling.preparing import compile_segments
from overlap_train.scheduling.segments import merge_layers

kl = keras.layers


def test_a_nested_model_is_one_layer_with_the_work_of_all_its_own():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4)], name="inner")
    inputs = keras.Input((4,))
    split = split_model(keras.Model(inputs, keras.layers.ReLU()(inner(inputs))))
    assert [len(layer.work.single_parts()) for layer in split.graph.layers] == [2, 1]


def work_for(layer, *shape, dtype="float32"):
    x = keras.Input(shape, dtype=dtype)
    return work_of(layer, [x], [layer(x)])


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
        (kl.BatchNormalization(), (6,), "norm", 6),
        (kl.ReLU(), (6,), "activation", 6),
        (kl.MaxPooling2D(), (4, 4, 3), "pool", 12),
        (kl.GlobalAveragePooling2D(), (4, 4, 3), "reduce", 3),
        (kl.Flatten(), (2, 3), "reshape", 6),
        (kl.Lambda(lambda x: x), (6,), "other", 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, kl.Layer) else None,
)
def test_each_kind_of_layer_has_its_operations(layer, shape, kind, flops):
    work = work_for(layer, *shape)
    assert (work.kind, work.flops) == (kind, flops)


def test_bytes_are_those_of_inputs_outputs_and_weights():
    work = work_for(kl.Dense(4), 3)
    assert (work.moved_bytes, work.weight_bytes) == (4 * (3 + 4), 4 * (12 + 4))
    assert work_for(kl.Embedding(10, 4), 5, dtype="int64").moved_bytes == 8 * 5 + 4 * 20


def test_a_size_that_is_not_known_counts_one():
    assert (elements((None, 3)), elements(())) == (3, 1)
    assert tensor_bytes(keras.Input((None, 3), dtype="float16")) == 6


def test_a_layer_that_is_called_twice_is_two_calls():
    inputs, shared = keras.Input((3,)), kl.Dense(3, name="shared")
    model = keras.Model(inputs, kl.Add(name="sum")([shared(inputs), shared(shared(inputs))]))
    names = [call.name for call in calls_of(model)]
    assert sorted(names) == ["shared", "shared", "shared", "sum"]
    assert names[-1] == "sum"


class Trains(kl.Layer):
    """Does something else in training, which is its default."""

    def call(self, x, training=True):
        return x * 9.0 if training else x


def test_a_call_runs_as_in_inference_with_its_arguments_in_their_places():
    inputs = keras.Input((3,))
    dropped = Trains(name="trains")(inputs)
    outputs = kl.Subtract()([dropped, inputs * 2.0])
    for call in calls_of(keras.Model(inputs, outputs)):
        values = call.run([tf.fill((1, 3), float(n + 1)) for n in range(len(call.inputs))])
        assert len(values) == len(call.outputs)
        if call.name == "trains":
            assert values[0].numpy().tolist() == [[1.0] * 3]
        if call.name.startswith("subtract"):
            assert values[0].numpy().tolist() == [[-1.0] * 3]


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
        (list, [tf.sparse.from_dense(ONES), ONES * 2]),
        (list, [ONES.astype("float64"), ONES.astype("uint8") * 2]),
    ],
    ids=["list", "tuple", "by-name", "dict", "tensors", "sparse", "dtypes"],
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
    "none": (list, [ONES, None], ValueError, "the input 'right' is not optional"),
    "shape": (list, [ONES, ONES[:, :3]], ValueError, r"'right' takes \(None, 4\), got the shape \(2, 3\)"),
    "batch": (list, [ONES, ONES[:1]], ValueError, "one batch dimension"),
    "text": (list, [ONES, np.full((2, 4), "1")], TypeError, "'right' takes float32, got <U1"),
    "complex": (list, [ONES, ONES * 1j], TypeError, "'right' takes float32, got complex64"),
    "list": (list, ONES.tolist() * 2, ValueError, "a list is one value for each input: pass an array"),
    "objects": (list, [ONES, np.full((2, 4), object())], TypeError, "'right' takes an array, got "),
    "ragged": (list, [ONES, RAGGED], TypeError, "'right' takes an array, got "),
}


@pytest.mark.parametrize(("nest", "x", "error", "said"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_by_name(nest, x, error, said):
    with pytest.raises(error, match=said):
        inputs(nest).flatten("m", x)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (keras.Sequential([keras.layers.Dense(2)]), "a Sequential model that is not built .* keras.Input"),
        (OwnCall(), r"a subclassed model .* input_specs="),
    ],
)
def test_a_model_that_does_not_say_what_it_reads_is_told_how(model, said):
    with pytest.raises(ValueError, match=said):
        inputs_of(model, (), "m")


def test_a_last_dimension_of_one_may_be_left_out_or_added_as_under_keras():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    taken = inputs_of(model, (), "m")
    for x in (np.ones(3), np.ones((3, 1)), np.ones((3, 1, 1))):
        assert taken.flatten("m", x)[0].shape == (3, 1)
        assert model(x).shape == (3, 2)


def test_a_model_of_sparse_tensors_is_refused():
    sparse = keras.Input((4,), sparse=True, name="counts")
    with pytest.raises(ValueError, match="the input 'counts' is sparse or ragged"):
        inputs_of(keras.Model(sparse, keras.layers.Dense(1)(sparse)), (), "m")


ONE_CORE = Platform((Device("CPU:0"),))


def branching_model():
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((4,), name="right")
    shared = keras.layers.Conv2D(4, 3, padding="same", name="shared")
    a = shared(left)
    b = keras.layers.BatchNormalization()(shared(left[:, ::-1] * 2.0))
    merged = keras.layers.GlobalAveragePooling2D()(keras.layers.Concatenate()([a, b]))
    dense = keras.layers.Dense(4)(right) + merged[:, :4]
    return keras.Model({"left": left, "right": right}, {"sum": dense, "map": keras.layers.ReLU()(a)})


def outputs_of(graph, inputs, device="CPU:0"):
    tensors = {Port(-1, n): x for n, x in enumerate(inputs)}
    for index, layer in enumerate(graph.layers):
        outputs = layer.runs[device](tuple(tensors[port] for port in layer.inputs))
        tensors.update({Port(index, n): y for n, y in enumerate(outputs)})
    return [tensors[port].numpy() for port in graph.outputs]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("constant", [False, True])
def test_branches_shared_layers_several_inputs_and_outputs_survive(size, constant):
    model = branching_model()
    rng = np.random.default_rng(0)
    inputs = {"left": rng.random((2, 8, 8, 3), "float32"), "right": rng.random((2, 4), "float32")}
    split = split_model(model)
    count = len(split.graph)
    groups = [range(begin, min(begin + size, count)) for begin in range(0, count, size)]
    graph = compile_segments(split, merge_layers(split.graph, groups), ONE_CORE, constant_weights=constant)
    got = outputs_of(graph, [tf.constant(inputs[k]) for k in ("left", "right")])
    want = keras.tree.flatten(model(inputs, training=False))
    for left, right in zip(got, want, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_masks_keep_a_network_whole():
    tokens = keras.Input((5,), dtype="int32")
    x = keras.layers.LSTM(3)(keras.layers.Embedding(10, 4, mask_zero=True)(tokens))
    model = keras.Model(tokens, x)
    split = split_model(model)
    assert len(split.graph) == 1
    graph = compile_segments(split, merge_layers(split.graph, [range(1)]), ONE_CORE)
    ids = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]], "int32")
    np.testing.assert_allclose(outputs_of(graph, [tf.constant(ids)])[0], model(ids), atol=1e-6)


def split_of(outputs):
    inputs = keras.Input((4,))
    return split_model(keras.Model(inputs, outputs(inputs)))


@pytest.mark.parametrize(
    ("outputs", "keeps"),
    [(lambda x: x * 2.0, True), (lambda x: [x, keras.ops.sum(x)], False), (keras.ops.transpose, False)],
    ids=["rows", "a-number", "columns"],
)
def test_an_output_without_the_batch_in_front_cannot_be_divided(outputs, keeps):
    assert split_of(outputs).keeps_rows is keeps


def test_the_batch_is_free_and_a_number_has_none():
    assert spec_of(keras.KerasTensor((7, 3), "int32")) == tf.TensorSpec((None, 3), tf.int32)
    assert spec_of(keras.KerasTensor(())) == tf.TensorSpec((), tf.float32)


X = tf.ones((2, 4))


class Returns(keras.Model):
    """Returns what a function makes of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


def whole(model):
    return WholeModel(model, "m", ModelInputs((tf.TensorSpec((None, 4)),)))


def test_outputs_are_those_of_the_call_and_not_of_the_graph():
    class Fewer(keras.Model):
        def call(self, inputs):
            return {"first": super().call(inputs)[:, :1], "nothing": None}

    inputs = keras.Input((4,))
    split = whole(Fewer(inputs, keras.layers.Dense(3)(inputs)))
    assert split.spec(Port(0)).shape.as_list() == [None, 1]
    assert split.pack([7]) == {"first": 7, "nothing": None}
    assert len(split.graph) == 1


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


def test_a_call_without_a_training_phase_is_not_given_one():
    class Bare(keras.Model):
        def __call__(self, x):
            return x * 3.0

    (three,) = whole(Bare()).function([Port(-1)], range(1), [Port(0)], False)(X)
    assert three.numpy().tolist() == [[3.0] * 4] * 2


def test_what_is_no_array_is_refused():
    with pytest.raises(ValueError, match="m returns a RaggedTensor, which is no array"):
        whole(
            Returns(
                lambda x: tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), tf.fill(tf.shape(x)[:1], 4))
            )
        )
