"""`tiled_conv2d` against TensorFlow in float64, forward and backward, and `TiledConv2D` against Conv2D."""

from __future__ import annotations

import itertools
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.conv import TiledConv2D, library, selection, tiled_conv2d
from tests import interpreters

pytestmark = pytest.mark.usefixtures("native")

CASES = list(
    itertools.product(
        (1, 3, 5), (1, 2), ("SAME", "VALID"), (1, 3, 4, 17, 64), (1, 3, 4, 17, 64), (191, 23, 11), (1, 3)
    )
)


def random(*shape: int, seed: int, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def relative(got: tf.Tensor, want: tf.Tensor, terms: int = 0) -> float:
    """The error's norm over the result's; over that of random sums of so many terms, where they cancelled."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), np.sqrt(terms * want.size), 1e-30))


def poison_freed_memory() -> None:
    """Leaves NaN in the allocator's free blocks, so that an output not written is seen."""
    for size in (1 << 10, 1 << 14, 1 << 18, 1 << 20):
        tf.fill([size], np.float32("nan"))


def value_and_gradients(function, operands, dy):
    with tf.GradientTape() as tape:
        tape.watch(operands)
        y = function(*operands)
    return [y, *tape.gradient(y, operands, output_gradients=dy)]


def check(algorithm: str, bound: float, x, filters, bias, strides, padding: str) -> None:
    wide = [tf.constant(v, tf.float64) for v in (x, filters, bias)]
    expected = tf.nn.conv2d(wide[0], wide[1], strides, padding) + wide[2]
    dy = random(*expected.shape, seed=4)

    def stock(x, filters, bias):
        return tf.nn.conv2d(x, filters, strides, padding) + bias

    want = value_and_gradients(stock, wide, tf.constant(dy, tf.float64))
    poison_freed_memory()
    got = value_and_gradients(
        lambda *operands: tiled_conv2d(*operands, strides=strides, padding=padding, algorithm=algorithm),
        [tf.constant(v) for v in (x, filters, bias)],
        tf.constant(dy),
    )
    pixels = int(np.prod(expected.shape[:3]))
    terms = {"output": 0, "input": 0, "filters": pixels, "bias": pixels}
    for name, ours, theirs in zip(terms, got, want, strict=True):
        error = relative(ours, theirs, terms[name])
        print(f"{algorithm} {name} error {error:.1e}")
        assert error < (1e-6 if name == "bias" else bound), name


WINOGRAD_CASES = [case for case in CASES if case[0] == 3 and case[1] == 1]
BOUNDS = {"direct": 1e-6, "winograd": 5e-6}


# Every 13th case still meets every value of every parameter, and every pair of neighbours.
@pytest.mark.parametrize(
    ("algorithm", "cases"),
    [
        *(("direct", [case]) for case in CASES[::13]),
        *(("winograd", [case]) for case in WINOGRAD_CASES[::7]),
        pytest.param("direct", CASES, marks=pytest.mark.nightly),
        pytest.param("winograd", WINOGRAD_CASES, marks=pytest.mark.nightly),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[0]) if len(value) == 1 else "all",
)
def test_it_agrees_with_float64(algorithm: str, cases) -> None:
    for kernel, stride, padding, inputs, outputs, width, batch in cases:
        x, filters = random(batch, 9, width, inputs, seed=1), random(kernel, kernel, inputs, outputs, seed=2)
        check(algorithm, BOUNDS[algorithm], x, filters, random(outputs, seed=3), stride, padding)


@pytest.mark.timeout(60)  # which counted each pixel of a stride of 2**31
@pytest.mark.parametrize("strides", [(2**31 - 1, 1), (1, 2**31 - 1), (2**31 - 1, 2**31 - 1), (40, 3), (5, 9)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_strides_beyond_the_image_cost_what_the_image_costs(strides, padding, kernel) -> None:
    x, filters, bias = random(2, 7, 9, 3, seed=1), random(kernel, kernel, 3, 4, seed=2), random(4, seed=3)
    check("direct", 1e-6, x, filters, bias, strides, padding)


# They are written past the caches where their rows are whole lines: 17 MB of 64 channels, not of 70. Winograd
# keeps its bound for many channels too.
@pytest.mark.by_default("winograd-64-96-64-64-1", "direct-250-271-64-4-2")
@pytest.mark.parametrize(
    ("algorithm", "height", "width", "inputs", "outputs", "stride"),
    [
        ("direct", 250, 271, 4, 64, 1),
        ("direct", 250, 271, 64, 4, 2),
        ("direct", 250, 271, 4, 70, 1),
        ("winograd", 250, 271, 4, 64, 1),
        ("winograd", 250, 271, 64, 4, 1),
        ("winograd", 8, 12, 1024, 1024, 1),
        ("winograd", 16, 24, 512, 512, 1),
        ("winograd", 64, 96, 64, 64, 1),
    ],
)
def test_large_results_and_many_channels_agree_with_float64(
    algorithm, height, width, inputs, outputs, stride
) -> None:
    x, filters = random(1, height, width, inputs, seed=1), random(3, 3, inputs, outputs, seed=2)
    check(algorithm, BOUNDS[algorithm], x, filters, random(outputs, seed=3), stride, "SAME")


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_relu_and_bias_are_differentiated_together(algorithm: str) -> None:
    x, filters, bias = random(2, 7, 9, 5, seed=1), random(3, 3, 5, 6, seed=2), random(6, seed=3)
    dy = tf.constant(random(2, 7, 9, 6, seed=4))
    operands = [tf.constant(v) for v in (x, filters, bias)]
    want = value_and_gradients(lambda x, f, b: tf.nn.relu(tf.nn.conv2d(x, f, 1, "SAME") + b), operands, dy)
    got = value_and_gradients(
        lambda *v: tiled_conv2d(*v, activation="relu", algorithm=algorithm), operands, dy
    )
    for ours, theirs in zip(got, want, strict=True):
        assert relative(ours, theirs) < 5e-6


@pytest.mark.nightly
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.by_default("1")
def test_second_derivatives_agree_with_finite_differences(strides: int) -> None:
    operands = [
        tf.constant(random(*s, seed=i, dtype=np.float64)) for i, s in enumerate([(1, 5, 4, 2), (3, 3, 2, 2)])
    ]

    def gradient(*v):
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = tf.reduce_sum(tiled_conv2d(*v, strides=strides, algorithm="direct") ** 3)
        return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(y, v)], 0)

    theoretical, numerical = tf.test.compute_gradient(gradient, operands)
    scale = max(np.abs(n).max() for n in numerical)
    assert max(np.abs(t - n).max() for t, n in zip(theoretical, numerical, strict=True)) < 1e-6 * scale


@pytest.mark.parametrize("algorithm", ["direct", "winograd", "auto"])
def test_empty_batch_gives_empty_output_and_zero_gradient(algorithm: str) -> None:
    x, filters = tf.zeros([0, 5, 6, 3]), tf.constant(random(3, 3, 3, 4, seed=1))
    y, dx, dfilters = value_and_gradients(
        lambda *v: tiled_conv2d(*v, algorithm=algorithm), [x, filters], tf.zeros([0, 5, 6, 4])
    )
    assert y.shape == [0, 5, 6, 4]
    assert dx.shape == x.shape
    np.testing.assert_array_equal(dfilters, np.zeros(filters.shape))
    if algorithm == "direct":  # an image of no height, and one below the kernel's
        no_height = tiled_conv2d(tf.zeros([2, 0, 6, 3]), filters, algorithm=algorithm)
        below = tiled_conv2d(tf.zeros([1, 2, 6, 3]), filters, padding="VALID", algorithm=algorithm)
        assert (no_height.shape, below.shape) == ([2, 0, 6, 4], [1, 0, 4, 4])


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_nan_stays_where_tensorflow_keeps_it_and_with_winograd_in_its_tiles(algorithm: str) -> None:
    x = random(1, 16, 16, 4, seed=1)
    x[0, 5, 5, 2] = np.nan
    filters = random(3, 3, 4, 5, seed=2)
    spoilt = np.isnan(tiled_conv2d(x, filters, algorithm=algorithm).numpy())
    theirs = np.isnan(tf.nn.conv2d(x, filters, 1, "SAME").numpy())
    if algorithm == "direct":
        np.testing.assert_array_equal(spoilt, theirs)
    else:
        assert spoilt[theirs].all()
        assert not spoilt[0, 8:].any()
        assert not spoilt[0, :, 8:].any()


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("channels", [1, 8])
def test_relu_keeps_nan(algorithm: str, channels: int) -> None:
    x = tf.fill([1, 4, 4, channels], np.float32("nan"))
    y = tiled_conv2d(x, tf.ones([3, 3, channels, 5]), activation="relu", algorithm=algorithm)
    assert np.isnan(y.numpy()).all()


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_results_repeat_bit_for_bit(algorithm: str) -> None:
    x, filters = tf.constant(random(3, 20, 21, 33, seed=1)), tf.constant(random(3, 3, 33, 70, seed=2))
    dy = tf.constant(random(3, 20, 21, 70, seed=3))

    def once():
        return value_and_gradients(lambda *v: tiled_conv2d(*v, algorithm=algorithm), [x, filters], dy)

    for first, second in zip(once(), once(), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"strides": 0}, "positive"),
        ({"strides": (1, 2, 3)}, "positive"),
        ({"padding": "FULL"}, "SAME"),
        ({"activation": "gelu"}, "relu"),
        ({"algorithm": "fft"}, "winograd"),
        ({"algorithm": "winograd", "strides": 2}, "strides of 1"),
        ({"x": tf.zeros([1, 5, 5, 4])}, "4 channels"),
    ],
)
def test_bad_arguments_are_named_and_auto_leaves_half_precision_to_tensorflow(kwargs, message) -> None:
    x, filters = tf.ones([1, 4, 4, 2], tf.float16), tf.ones([3, 3, 2, 2], tf.float16)
    with pytest.raises(ValueError, match=message):
        tiled_conv2d(**{"x": tf.cast(x, "float32"), "filters": tf.cast(filters, "float32"), **kwargs})
    np.testing.assert_array_equal(tiled_conv2d(x, filters), tf.nn.conv2d(x, filters, 1, "SAME"))


def test_mismatches_found_only_at_run_time_are_errors_not_crashes() -> None:
    operations = library.load()
    x, filters, none = tf.zeros([1, 5, 5, 2]), tf.zeros([3, 3, 2, 4]), tf.zeros([0])
    forward, to_input = operations.overlap_tiled_conv2d, operations.overlap_tiled_conv2d_backprop_input
    for call in (
        lambda: forward(x, filters, tf.zeros([3])),
        lambda: forward(x, tf.zeros([5, 5, 2, 4]), none, algorithm="winograd"),
        lambda: forward(x, filters, none, strides=[1, 1, 1]),
        lambda: to_input([1, 5, 5, 2], filters, tf.zeros([1, 4, 5, 4])),
        lambda: to_input([-1, 5, 5, 2], filters, tf.zeros([1, 5, 5, 4])),
        lambda: operations.overlap_tiled_conv2d_backprop_filter(x, [3, 3, 7, 4], tf.zeros([1, 5, 5, 4])),
        lambda: operations.overlap_tiled_conv2d_epilogue_grad(tf.zeros([1, 5]), tf.zeros([1, 4])),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call()


def test_without_the_library_auto_uses_tensorflow_and_says_so_once() -> None:
    program = (
        "import tensorflow as tf\n"
        "from overlap_train.conv import is_available, tiled_conv2d\n"
        "x, f = tf.random.normal([1, 5, 5, 2]), tf.random.normal([3, 3, 2, 2])\n"
        "for _ in range(3):\n"
        "    assert (tiled_conv2d(x, f).numpy() == tf.nn.conv2d(x, f, 1, 'SAME').numpy()).all()\n"
        "assert not is_available()\n"
        "try:\n"
        "    tiled_conv2d(x, f, algorithm='direct')\n"
        "except Exception as error:\n"
        "    assert type(error).__name__ == 'NativeUnavailableError', error\n"
        "else:\n"
        "    raise SystemExit('no error')\n"
    )
    environment = os.environ | {"OVERLAP_TRAIN_CONV_DISABLE": "1"}
    result = interpreters.run(["-c", program], env=environment, check=True)
    assert result.stderr.count("tiled_conv2d uses tf.nn.conv2d") == 1


def test_each_direction_runs_the_algorithm_chosen_for_it_in_a_graph(monkeypatch) -> None:
    chosen = {"forward": "tf.nn.conv2d", "input_gradient": "direct", "filter_gradient": "winograd"}
    monkeypatch.setattr(selection, "choose", lambda key, compute: chosen[key.direction])

    def gradients(*operands):
        return value_and_gradients(lambda *v: tiled_conv2d(*v, activation="relu"), operands, None)[1:]

    specs = tf.TensorSpec((2, 8, 8, 3)), tf.TensorSpec((3, 3, 3, 5))
    graph = tf.function(gradients, autograph=False).get_concrete_function(*specs).graph
    operations = {operation.type: operation for operation in graph.get_operations()}
    assert "Conv2D" in operations
    assert "OverlapTiledConv2D" not in operations
    assert operations["OverlapTiledConv2DBackpropInput"].get_attr("algorithm") == b"direct"
    assert operations["OverlapTiledConv2DBackpropFilter"].get_attr("algorithm") == b"winograd"


def test_a_function_of_unknown_shapes_can_be_traced_and_exported(tmp_path) -> None:
    module = tf.Module()
    filters = tf.constant(random(3, 3, 8, 16, seed=1))
    module.run = tf.function(
        lambda x: tiled_conv2d(x, filters, activation="relu"),
        input_signature=[tf.TensorSpec([None, None, None, 8])],
        autograph=False,
    )
    tf.saved_model.save(module, str(tmp_path))
    for shape in ((1, 9, 7, 8), (2, 30, 31, 8)):
        x = tf.constant(random(*shape, seed=2))
        assert relative(module.run(x), tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME"))) < 5e-6
        np.testing.assert_allclose(tf.saved_model.load(str(tmp_path)).run(x), module.run(x), rtol=1e-6)


ARGUMENTS = [
    {"filters": 5, "kernel_size": 3},
    {"filters": 5, "kernel_size": (3, 2), "strides": 2, "padding": "same", "activation": "relu"},
    {"filters": 16, "kernel_size": 3, "padding": "same", "activation": "gelu", "use_bias": False},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_same_arguments_weights_results_and_files_as_conv2d(arguments, tmp_path) -> None:
    images = np.random.default_rng(0).standard_normal((2, 9, 11, 4)).astype("float32")
    theirs, ours = keras.layers.Conv2D(**arguments), TiledConv2D(**arguments, algorithm="direct")
    want = theirs(images)
    model = keras.Sequential([keras.Input((9, 11, 4)), ours])
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(images), want, rtol=1e-4, atol=1e-5)
    assert ours.compute_output_shape(images.shape) == theirs.compute_output_shape(images.shape)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].algorithm == "direct"
    np.testing.assert_array_equal(loaded(images), model(images))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 2}, "groups=2"),
        ({"dilation_rate": 2}, "dilated"),
        ({"data_format": "channels_first"}, "channels_last"),
        ({"algorithm": "fft"}, "algorithm"),
    ],
)
def test_what_only_conv2d_can_do_is_refused(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        TiledConv2D(4, 3, **arguments)
