"""Layers cut into pieces compute what they did whole, and the pieces run beside each other."""

import functools

import keras
import numpy as np
import pytest

from overlap_train.scheduling import CostModel, Device, MultiModelScheduler, Platform
from overlap_train.scheduling.costs import FixedCosts
from overlap_train.scheduling.graph import Port
from overlap_train.scheduling.models import split_model
from overlap_train.scheduling.segments import choose_segments, piece_shares, worth_cutting
from tests.scheduling.graphs import CLOSE, CORES, computed

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


def equal(count):
    return lambda layer: [1.0] * count


def every(split):
    return [range(index, index + 1) for index in range(len(split.graph))]


DENSE = [{}, {"activation": "softmax"}, {"use_bias": False, "activation": "relu"}]


@pytest.mark.parametrize("dense", DENSE, ids=["plain", "softmax", "relu"])
@pytest.mark.parametrize("shares", [(1, 1), (9, 1), (1, 2, 3), (1,) * 200])
@pytest.mark.by_default("shares1-softmax")
def test_pieces_make_up_the_layer(shares, dense):
    model = network(bias_initializer="random_normal", **dense)
    split, x = split_model(model, cut=lambda layer: shares), examples()
    count = min(len(shares), 125)  # 1000 channels are 125 blocks of 8
    assert names(split.graph) == [*(f"large/{n}" for n in range(count)), "large/join", "small"]
    assert {layer.inputs for layer in split.graph.layers[:count]} == {(Port(-1),)}, "side by side"
    (got,) = computed(split, every(split), x)
    np.testing.assert_allclose(got, model(x, training=False), rtol=CLOSE, atol=CLOSE)


def test_a_layer_on_sequences_and_one_that_is_called_twice_are_cut():
    x = keras.Input((5, 1100))
    shared = keras.layers.Dense(1100, name="shared")
    model = keras.Model(x, shared(shared(x)))
    split = split_model(model, cut=equal(2))
    assert names(split.graph) == [
        "shared/0", "shared/1", "shared/join", "shared#2/0", "shared#2/1", "shared#2/join",
    ]  # fmt: skip
    data = examples(2, (5, 1100))
    (got,) = computed(split, every(split), data)
    np.testing.assert_allclose(got, model(data, training=False), rtol=1e-4, atol=1e-4)


def test_a_device_has_as_much_of_a_layer_as_it_is_fast():
    costs = FixedCosts(lambda layer, device: 1.0 if device.kind == "gpu" else 10.0)
    layer = split_model(network()).graph.layers[0]
    few, all_slots = [1, 0.1], [1, 0.1, 0.1, 0.1, 0.1]
    for pieces, expected in {2: few, 5: all_slots, 6: [0.5, *all_slots[1:], 0.5]}.items():
        assert piece_shares(layer, CORES, costs, pieces) == pytest.approx(expected)


def test_what_is_small_or_not_plain_stays_whole():
    assert names(split_model(network()).graph) == ["large", "small"]
    assert names(split_model(network("mixed_bfloat16"), cut=equal(4)).graph) == ["large", "small"]
    with_lora = network()
    with_lora.get_layer("large").enable_lora(4)
    assert names(split_model(with_lora, cut=equal(4)).graph) == ["large", "small"]
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


CONVOLUTIONS = {
    "rows, of which the first and the last have padding": {"activation": "relu"},
    "rows of a valid convolution": {"padding": "valid", "activation": "gelu", "size": 40},
    "rows with strides": {"strides": 2, "filters": 300, "size": 33},
    "rows with an even kernel and strides across": {"kernel_size": (4, 3), "strides": (3, 3), "size": 90},
    "channels, as the kernel is larger": {"filters": 512, "channels": 256, "size": 12},
    "channels that are mixed behind the join": {"filters": 512, "channels": 256, "activation": "softmax"},
    "double precision": {"dtype": "float64", "use_bias": False},
}


@pytest.mark.by_default("rows with strides-True", "channels, as the kernel is larger-False")
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution_is_the_same_in_pieces(options, merged):
    model = convolution(**options)
    split, x = split_model(model, cut=lambda layer: (3, 1, 2)), examples(2, model.input_shape[1:])
    first = names(split.graph).index("conv/0")
    assert names(split.graph)[first : first + 4] == ["conv/0", "conv/1", "conv/2", "conv/join"]
    groups = choose_segments(split.graph, TWO_CORES, CostModel(), call_s=1.0) if merged else every(split)
    (got,) = computed(split, groups, x)
    np.testing.assert_allclose(got, model(x, training=False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"filters": 16}, {"size": 8}, {"groups": 2}, {"dilation_rate": 2}, {"dtype": "mixed_bfloat16"}],
)
def test_a_convolution_that_is_small_or_not_plain_stays_whole(options):
    assert "conv" in names(split_model(convolution(**options), cut=equal(3)).graph)


def test_what_computes_by_itself_stays_whole():
    class Own(keras.layers.Conv2D):
        def call(self, inputs):
            return super().call(inputs) * 2

    x = keras.Input((32, 32, 64))
    assert names(split_model(keras.Model(x, Own(64, 3, name="own")(x)), cut=equal(3)).graph) == ["own"]
    model = convolution()
    layer = model.get_layer("conv")
    layer.call = functools.partial(type(layer).call, layer)  # as `accelerate` does
    assert "conv" in names(split_model(model, cut=equal(3)).graph)


def test_only_layers_that_gain_are_cut():
    model = keras.Sequential([keras.Input((1100,)), *(kl.Dense(1100, name=name) for name in "abc")])
    whole, graph = split_model(model, name="m").graph, split_model(model, name="m", cut=equal(2)).graph
    piece_s = {"m/a": 0.4e-3, "m/b": 1.1e-3, "m/c": 1.4e-3}

    def true_s(layer, device):
        if layer.alone:
            return piece_s[layer.name.rpartition("/")[0]]
        return 2e-3 if layer.name in piece_s else 1e-4

    # Two pieces take as long as one on two cores, and twice as long on one.
    assert worth_cutting(whole, graph, TWO_CORES, FixedCosts(true_s)) == {"m/a", "m/b"}
    assert worth_cutting(whole, graph, Platform((Device("CPU:0"),)), FixedCosts(true_s)) == {"m/a"}


def test_what_the_profile_shows_to_gain_nothing_is_not_cut():
    """Small enough that no machine's threads are fast enough for it."""
    with MultiModelScheduler({"m": network()}, devices=Platform((Device("CPU:0"),)), cut=16) as scheduler:
        assert scheduler._service.model("m").graph.pieces is None


@pytest.mark.by_default("cpu_only")
@pytest.mark.parametrize("policy", ["earliest_finish", "paper", "cpu_only"])
def test_the_scheduler_cuts_for_its_users(policy, every_layer_is_cut):
    models = {"dense": network(), "residual": convolution()}
    options = {"devices": TWO_CORES, "policy": policy, "cut": 2}
    with MultiModelScheduler(models, **options) as scheduler:
        assert names(scheduler._service.model("dense").graph.pieces)[:2] == ["large/0", "large/1"]
        for name, model in models.items():
            x = examples(1, model.input_shape[1:])
            want = model(x, training=False)
            for future in [scheduler.submit(name, x) for _ in range(4)]:
                np.testing.assert_allclose(future.result(60), want, rtol=1e-4, atol=1e-4)
