"""Layers cut into pieces compute what they did whole, and the pieces run beside each other."""

from __future__ import annotations

import functools
import itertools
import threading
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.scheduling import CostModel, Device, Engine, MultiModelScheduler, Platform
from overlap_train.scheduling.calls import _bounds, kernel_rows
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import LayerGraph, Port, Request
from overlap_train.scheduling.models import split_model
from overlap_train.scheduling.preparing import compile_segments
from overlap_train.scheduling.segments import choose_segments, merge_layers, worth_cutting
from tests.devices import tolerance

CLOSE = tolerance(1e-5, on_gpu=1e-4)  # a GPU forms the sums of a part in another order

kl = keras.layers
TWO_CORES = Platform((Device("CPU:0", slots=2),))


def network(dtype="float32", **dense):
    x = keras.Input((1100,), name="x")
    y = keras.layers.Dense(1000, name="large", dtype=dtype, **dense)(x)
    return keras.Model(x, keras.layers.Dense(3, name="small")(y))


def examples(count=3, shape=(1100,)):
    return np.random.default_rng(0).standard_normal((count, *shape)).astype("float32")


def names(graph):
    return [layer.name.partition("/")[2] for layer in graph.layers]


def computed(split, groups, x, *, whole=False, **options):
    graph = compile_segments(split, merge_layers(split.graph, groups), TWO_CORES, **options)
    tensors = {Port(-1): tf.constant(x)}
    for index in range(len(graph)):
        if whole and index in graph.joins:
            continue
        layer = graph.form(index, whole=whole)
        outputs = layer.runs["CPU:0"](tuple(tensors[port] for port in layer.inputs))
        tensors.update({Port(index, n): y for n, y in enumerate(outputs)})
    return tensors[graph.outputs[0]].numpy()


def every(split):
    return [range(index, index + 1) for index in range(len(split.graph))]


PIECES = [(2, False), (2, True), (3, False), (8, False), (8, True), (100, False)]
DENSE = [{}, {"activation": "softmax"}, {"use_bias": False, "activation": "relu"}]


@pytest.mark.parametrize("dense", DENSE, ids=["plain", "softmax", "relu"])
@pytest.mark.parametrize(("pieces", "constant_weights"), PIECES)
@pytest.mark.by_default("2-False-plain")
def test_pieces_add_up_to_the_layer(pieces, dense, constant_weights):
    model = network(bias_initializer="random_normal", **dense)
    split, x = split_model(model, cut=pieces), examples()
    count = min(pieces, 69)  # 1100 rows are 69 blocks of 16
    assert names(split.graph) == [*(f"large/{n}" for n in range(count)), "large/sum", "small"]
    got = computed(split, every(split), x, constant_weights=constant_weights)
    np.testing.assert_allclose(got, model(x, training=False), rtol=CLOSE, atol=CLOSE)


def test_a_layer_on_sequences_and_one_that_is_called_twice_are_cut():
    x = keras.Input((5, 1100))
    shared = keras.layers.Dense(1100, name="shared")
    model = keras.Model(x, shared(shared(x)))
    split = split_model(model, cut=2)
    assert names(split.graph) == [
        "shared/0", "shared/1", "shared/sum", "shared#2/0", "shared#2/1", "shared#2/sum",
    ]  # fmt: skip
    data = examples(2, (5, 1100))
    got = computed(split, every(split), data)
    np.testing.assert_allclose(got, model(data, training=False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_work_is_shared_out_and_none_is_lost(kind):
    graph = split_model(network() if kind == "dense" else convolution(), cut=4).graph
    join = graph.layers[next(iter(graph.joins.values()))]
    pieces, whole = [graph.layers[index] for index, _ in graph.joins.items()], join.whole.work
    assert sum(piece.work.weight_bytes for piece in pieces) == pytest.approx(whole.weight_bytes)
    products_alone = 2 * 1100 * 1000 if kind == "dense" else whole.flops
    assert sum(piece.work.flops for piece in pieces) == pytest.approx(products_alone)
    assert {piece.work.kind for piece in pieces} == {kind}
    assert join.work.weight_bytes == 0
    assert [piece.alone for piece in pieces] == [True] * 4
    assert not join.alone
    if kind == "conv":  # whose pieces have channels of their own; those of a dense layer are added up
        assert sum(sum(piece.output_bytes) for piece in pieces) == sum(join.output_bytes)


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


@pytest.mark.cpu_only("NumPy finds no address in the memory of a GPU")
@pytest.mark.parametrize(("rows", "columns"), [(4096, 1000), (1024, 1025), (1100, 1024), (25088, 42)])
def test_pieces_are_read_in_place(rows, columns):
    layer = keras.layers.Dense(columns)
    layer.build((None, rows))
    whole = tf.function(lambda: tf.convert_to_tensor(layer.kernel))()
    for first, stop in itertools.pairwise(_bounds(rows, 4)):
        piece = tf.function(lambda first=first, stop=stop: kernel_rows(layer.kernel, first, stop))()
        np.testing.assert_array_equal(piece, whole[first:stop])
        if stop * columns % 16 == 0:  # the last rows need not end there
            assert address(piece) == address(whole) + 4 * first * columns


@pytest.mark.cpu_only("weights lie on the GPU where there is one")
def test_rows_are_taken_where_the_weights_are():
    layer = keras.layers.Dense(1024)
    layer.build((None, 1100))

    def elsewhere():  # traced and not run: there need be no GPU
        with tf.device("/device:GPU:0"):
            return tf.identity(kernel_rows(layer.kernel, 0, 544), name="elsewhere")

    graph = tf.function(elsewhere).get_concrete_function().graph
    assert "GPU:0" in graph.get_operation_by_name("elsewhere").device
    slices = [op for op in graph.get_operations() if op.type == "StridedSlice"]
    assert len(slices) == 1
    assert "CPU:0" in slices[0].device


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1000, 25088])
@pytest.mark.parametrize("pieces", [2, 7, 64])
def test_pieces_cover_everything_once(length, pieces):
    bounds = _bounds(length, pieces)
    assert (bounds[0], bounds[-1]) == (0, length)
    assert all(bound % 16 == 0 for bound in bounds[:-1])
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert len(bounds) <= pieces + 1


def test_what_is_small_or_not_plain_stays_whole():
    assert names(split_model(network(), cut=1).graph) == ["large", "small"]
    assert names(split_model(network("mixed_bfloat16"), cut=4).graph) == ["large", "small"]
    with_lora = network()
    with_lora.get_layer("large").enable_lora(4)
    assert names(split_model(with_lora, cut=4).graph) == ["large", "small"]
    with pytest.raises(ValueError, match="cut must be at least 1; got 0"):
        MultiModelScheduler(cut=0)


def convolution(filters=64, channels=64, size=32, **options):
    """A convolution with 75 MFLOP or more for an example, and a residual addition after it."""
    x = keras.Input((size, size, channels), name="x")
    options = {"kernel_size": 3, "padding": "same", "bias_initializer": "random_normal"} | options
    y = keras.layers.Conv2D(filters, name="conv", **options)(x)
    if y.shape == x.shape:
        y = keras.layers.Add(name="add")([keras.layers.ReLU(name="relu")(x), y])
    return keras.Model(x, y)


@pytest.mark.by_default("options3-True", "options0-True")
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"activation": "relu"},
        {"use_bias": False, "dilation_rate": 2},
        {"padding": "valid", "activation": "gelu", "size": 40},
        {"strides": 2, "filters": 300, "size": 33},
        {"filters": 50, "size": 40},
        {"dtype": "float64"},
    ],
)
def test_a_convolution_is_the_same_in_both_forms(options, merged):
    model = convolution(**options)
    split, x = split_model(model, cut=3), examples(2, model.input_shape[1:])
    first = names(split.graph).index("conv/0")
    assert names(split.graph)[first : first + 4] == ["conv/0", "conv/1", "conv/2", "conv/channels"]
    assert split.graph.layers[first + 3].whole.name.endswith("/conv")
    groups = choose_segments(split.graph, TWO_CORES, CostModel(), call_s=1.0) if merged else every(split)
    want = model(x, training=False)
    for whole in (False, True):
        got = computed(split, groups, x, whole=whole)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"filters": 16},
        {"size": 8},
        {"groups": 2},
        {"activation": "softmax"},
        {"activation": lambda y: y / keras.ops.max(y)},
        {"dtype": "mixed_bfloat16"},
    ],
)
def test_a_convolution_that_is_small_or_mixes_channels_stays_whole(options):
    assert "conv" in names(split_model(convolution(**options), cut=3).graph)


def test_what_computes_by_itself_stays_whole():
    class Own(keras.layers.Conv2D):
        def call(self, inputs):
            return super().call(inputs) * 2

    x = keras.Input((32, 32, 64))
    assert names(split_model(keras.Model(x, Own(64, 3, name="own")(x)), cut=3).graph) == ["own"]
    model = convolution()
    layer = model.get_layer("conv")
    layer.call = functools.partial(type(layer).call, layer)  # as `accelerate` does
    assert "conv" in names(split_model(model, cut=3).graph)


def test_calls_of_a_shared_layer_keep_their_names_whether_cut_or_not():
    """As a head of several levels of a pyramid; only the second level is small."""
    head = keras.layers.Conv2D(64, 3, padding="same", name="head")
    levels = [keras.Input((size, size, 64)) for size in (32, 8, 40)]
    model = keras.Model(levels, [head(level) for level in levels])
    graph = split_model(model, name="m", cut=2).graph
    wholes = {graph.form(join, whole=True).name for join in graph.joins.values()}
    kept = {f"m/{name}" for name in names(graph) if "/" not in name}
    assert (len(wholes), len(kept)) == (2, 1)
    assert wholes | kept == {"m/head", "m/head#2", "m/head#3"}
    for whole in sorted(wholes):
        again = split_model(model, name="m", cut=2, only={whole}).graph
        assert {again.form(join, whole=True).name for join in again.joins.values()} == {whole}


def test_constant_pieces_hold_their_own_part_of_the_weights():
    split = split_model(network(), cut=4)
    segments = merge_layers(split.graph, every(split))
    graph = compile_segments(split, segments, TWO_CORES, constant_weights=True)
    sizes = [
        layer.runs["CPU:0"]._function.graph.as_graph_def().ByteSize()
        for index, layer in enumerate(graph.layers)
        if index in graph.joins
    ]
    assert len(sizes) == 4
    assert max(sizes) < 0.3 * 4 * 1100 * 1000


def test_only_layers_that_gain_a_quarter_are_cut():
    model = keras.Sequential([keras.Input((1100,)), *(kl.Dense(1100, name=name) for name in "abc")])
    graph = split_model(model, name="m", cut=2).graph
    piece_s = {"m/a": 0.4e-3, "m/b": 0.9e-3, "m/c": 1.1e-3}

    def true_s(layer, device):
        if layer.alone:
            return piece_s[layer.name.rpartition("/")[0]]
        return 2e-3 if layer.name in piece_s else 1e-4

    # Two pieces take as long as one on two cores, and twice as long on one.
    assert worth_cutting(graph, TWO_CORES, FixedCosts(true_s)) == {"m/a", "m/b"}
    assert worth_cutting(graph, Platform((Device("CPU:0"),)), FixedCosts(true_s)) == {"m/a"}
    assert names(split_model(model, name="m", cut=2, only={"m/b"}).graph) == ["a", "b/0", "b/1", "b/sum", "c"]


def test_what_the_profile_shows_to_gain_nothing_is_not_cut():
    """Small enough that no machine's threads are fast enough for it."""
    with MultiModelScheduler({"m": network()}, devices=Platform((Device("CPU:0"),)), cut=16) as scheduler:
        assert not scheduler.graph("m").joins


def test_two_workers_run_two_pieces_at_the_same_time():
    split, met, ended = split_model(network(), cut=2), threading.Barrier(2), []
    done = threading.Event()

    def run_of(layer):
        def run(_inputs):
            if layer.alone:
                met.wait(30)  # breaks, and fails the request, unless the other piece comes too
            return [0] * len(layer.output_bytes)

        return {"cpu": run}

    layers = [replace(layer, runs=run_of(layer)) for layer in split.graph.layers]
    graph = LayerGraph(layers, split.graph.outputs, input_bytes=split.graph.input_bytes)

    def on_done(_request, _outputs, error):
        ended.append(error)
        done.set()

    costs = FixedCosts(lambda layer, device: 1.0 if layer.name.endswith("/large") else 0.1)
    with Engine(TWO_CORES, "earliest_finish", costs=costs) as engine:
        engine.start(Request(0, graph, (0,), on_done=on_done))
        assert done.wait(60)
    assert ended == [None]


@pytest.mark.by_default("heft", "cpu_only")
@pytest.mark.parametrize("policy", ["earliest_finish", "paper", "heft", "cpu_only"])
def test_the_scheduler_cuts_for_its_users(policy):
    """Whatever a layer reads beside its pieces may not have been computed when its form is chosen."""
    models = {"dense": network(), "residual": convolution()}
    options = {"devices": TWO_CORES, "policy": policy, "cut": 2, "profile": False}
    with MultiModelScheduler(models, **options) as scheduler:
        assert names(scheduler.graph("dense"))[:2] == ["large/0", "large/1"]
        for name, model in models.items():
            x = examples(1, model.input_shape[1:])
            want = model(x, training=False)
            for future in [scheduler.submit(name, x) for _ in range(4)]:
                np.testing.assert_allclose(future.result(60), want, rtol=1e-4, atol=1e-4)
