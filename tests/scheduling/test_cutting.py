"""Dense layers cut into pieces compute what they did whole, and the pieces run beside each other."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

from overlap_train.scheduling import (
    CostModel,
    Device,
    Engine,
    LayerGraph,
    MultiModelScheduler,
    Platform,
    Port,
    Request,
)
from overlap_train.scheduling.segments import choose_segments, merge_layers

keras = pytest.importorskip("keras", reason="needs Keras")
tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
np = pytest.importorskip("numpy")

from overlap_train.scheduling.cutting import _bounds, rows_of
from overlap_train.scheduling.splitting import split_model
from overlap_train.scheduling.tensorflow_backend import compile_segments

TWO_CORES = Platform((Device("CPU:0", slots=2),))


def network(dtype="float32", **dense):
    x = keras.Input((1100,), name="x")
    y = keras.layers.Dense(1000, name="large", dtype=dtype, **dense)(x)
    return keras.Model(x, keras.layers.Dense(3, name="small")(y))


def examples(count=3, shape=(1100,)):
    return np.random.default_rng(0).standard_normal((count, *shape)).astype("float32")


def names(graph):
    return [layer.name.partition("/")[2] for layer in graph.layers]


def computed(split, groups, x, **options):
    graph = compile_segments(split, merge_layers(split.graph, groups), TWO_CORES, **options)
    tensors = {Port(-1): tf.constant(x)}
    for index, layer in enumerate(graph.layers):
        outputs = layer.runs["CPU:0"](tuple(tensors[port] for port in layer.inputs))
        tensors.update({Port(index, n): y for n, y in enumerate(outputs)})
    return tensors[graph.outputs[0]].numpy()


def every(split):
    return [range(index, index + 1) for index in range(len(split.graph))]


@pytest.mark.parametrize(
    ("pieces", "constant_weights"),
    [(2, False), (2, True), (3, False), (8, False), (8, True), (100, False)],
)
@pytest.mark.parametrize("dense", [{}, {"activation": "softmax"}, {"use_bias": False, "activation": "relu"}])
def test_pieces_add_up_to_the_layer(pieces, dense, constant_weights):
    model = network(bias_initializer="random_normal", **dense)
    split, x = split_model(model, cut_dense=pieces), examples()
    count = min(pieces, 69)  # 1100 rows are 69 blocks of 16
    assert names(split.graph) == [*(f"large/{n}" for n in range(count)), "large/sum", "small"]
    got = computed(split, every(split), x, constant_weights=constant_weights)
    np.testing.assert_allclose(got, model(x, training=False), rtol=1e-5, atol=1e-5)


def test_a_layer_on_sequences_and_one_that_is_called_twice_are_cut():
    x = keras.Input((5, 1100))
    shared = keras.layers.Dense(1100, name="shared")
    model = keras.Model(x, shared(shared(x)))
    split = split_model(model, cut_dense=2)
    assert names(split.graph) == [
        "shared/0", "shared/1", "shared/sum", "shared/0#2", "shared/1#2", "shared/sum#2",
    ]  # fmt: skip
    data = examples(2, (5, 1100))
    got = computed(split, every(split), data)
    np.testing.assert_allclose(got, model(data, training=False), rtol=1e-4, atol=1e-4)


def test_work_is_shared_out_and_none_is_lost():
    whole = split_model(network()).graph.layers[0].work
    *pieces, join = split_model(network(), cut_dense=4).graph.layers[:5]
    assert sum(piece.work.weight_bytes for piece in pieces) == pytest.approx(whole.weight_bytes)
    assert sum(piece.work.flops for piece in pieces) == pytest.approx(2 * 1100 * 1000)
    assert {piece.work.kind for piece in pieces} == {"dense"}
    assert join.work.weight_bytes == 0
    assert [piece.alone for piece in pieces] == [True] * 4
    assert not join.alone


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


@pytest.mark.parametrize(("rows", "columns"), [(4096, 1000), (1024, 1025), (1100, 1024), (25088, 42)])
def test_pieces_are_read_in_place(rows, columns):
    layer = keras.layers.Dense(columns)
    layer.build((None, rows))
    whole = tf.function(lambda: tf.convert_to_tensor(layer.kernel))()
    for first, stop in itertools.pairwise(_bounds(layer, 4)):
        piece = tf.function(lambda first=first, stop=stop: rows_of(layer.kernel, first, stop))()
        np.testing.assert_array_equal(piece, whole[first:stop])
        if stop * columns % 16 == 0:  # the last rows need not end there
            assert address(piece) == address(whole) + 4 * first * columns


def test_rows_are_taken_where_the_weights_are():
    layer = keras.layers.Dense(1024)
    layer.build((None, 1100))

    def elsewhere():  # traced and not run: there need be no GPU
        with tf.device("/device:GPU:0"):
            return tf.identity(rows_of(layer.kernel, 0, 544), name="elsewhere")

    graph = tf.function(elsewhere).get_concrete_function().graph
    assert "GPU:0" in graph.get_operation_by_name("elsewhere").device
    slices = [op for op in graph.get_operations() if op.type == "StridedSlice"]
    assert len(slices) == 1
    assert "CPU:0" in slices[0].device


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 1000, 25088])
@pytest.mark.parametrize("pieces", [2, 7, 64])
def test_pieces_cover_all_rows_once(rows, pieces):
    class Sized(keras.layers.Dense):
        pass

    layer = keras.layers.Dense(1 + (1 << 20) // rows)
    layer.build((None, rows))
    bounds = _bounds(layer, pieces)
    assert bounds[0] == 0
    assert bounds[-1] in (0, rows)
    assert all(bound % 16 == 0 for bound in bounds[:-1])
    assert all(a < b for a, b in itertools.pairwise(bounds)) or bounds == [0, 0]
    layer = Sized(1 + (1 << 20) // rows)
    layer.build((None, rows))
    assert _bounds(layer, pieces) == [0, 0]


def test_what_is_small_or_not_plain_stays_whole():
    assert names(split_model(network(), cut_dense=1).graph) == ["large", "small"]
    assert names(split_model(network("mixed_bfloat16"), cut_dense=4).graph) == ["large", "small"]
    with_lora = network()
    with_lora.get_layer("large").enable_lora(4)
    assert names(split_model(with_lora, cut_dense=4).graph) == ["large", "small"]
    with pytest.raises(ValueError, match="cut_dense must be at least 1, got 0"):
        split_model(network(), cut_dense=0)
    with pytest.raises(ValueError, match="cut_dense must be at least 1, got 0"):
        MultiModelScheduler(cut_dense=0)


@pytest.mark.parametrize("segments", ["whole", 3])
def test_pieces_are_not_put_together_again(segments):
    with pytest.raises(ValueError, match=r"cut_dense=2 needs segments='auto' or 'layers'"):
        MultiModelScheduler(segments=segments, cut_dense=2)


def test_merging_leaves_the_pieces_alone():
    split = split_model(network(), cut_dense=3)
    groups = choose_segments(split.graph, TWO_CORES, CostModel(), call_s=1.0)
    assert groups == [range(1), range(1, 2), range(2, 3), range(3, 5)]
    merged = merge_layers(split.graph, groups).graph.layers
    assert [layer.alone for layer in merged] == [True, True, True, False]


def test_pieces_follow_the_weights_unless_they_are_constant():
    model, x = network(), examples()
    split = split_model(model, cut_dense=2)
    groups = every(split)
    graph = compile_segments(split, merge_layers(split.graph, groups), TWO_CORES)
    model.get_layer("large").kernel.assign(tf.ones((1100, 1000)))
    piece = graph.layers[0].runs["CPU:0"]((tf.constant(x),))[0]
    rows = _bounds(model.get_layer("large"), 2)[1]
    np.testing.assert_allclose(piece[:, 0], x[:, :rows].sum(axis=1), rtol=1e-4, atol=1e-4)


def test_two_workers_run_two_pieces_at_the_same_time():
    split, met, ended = split_model(network(), cut_dense=2), threading.Barrier(2), []
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

    with Engine(TWO_CORES, "earliest_finish") as engine:
        engine.start(Request(0, graph, (0,), on_done=on_done))
        assert done.wait(60)
    assert ended == [None]


@pytest.mark.parametrize("policy", ["earliest_finish", "paper", "heft", "cpu_only"])
def test_the_scheduler_cuts_for_its_users(policy):
    model, x = network(), examples()
    with MultiModelScheduler({"m": model}, devices=TWO_CORES, policy=policy, cut_dense=2) as scheduler:
        assert names(scheduler.graph("m"))[:2] == ["large/0", "large/1"]
        got = scheduler.submit("m", x).result(60)
    np.testing.assert_allclose(got, model(x, training=False), rtol=1e-5, atol=1e-5)
