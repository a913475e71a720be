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


def check_case(algorithm: str, bound: float, case) -> None:
    kernel, stride, padding, inputs, outputs, width, batch = case
    x = random(batch, 9, width, inputs, seed=1)
    filters = random(kernel, kernel, inputs, outputs, seed=2)
    check(algorithm, bound, x, filters, random(outputs, seed=3), stride, padding)


# Every 13th case still meets every value of every parameter, and every pair of neighbours.
@pytest.mark.parametrize("case", CASES[::13], ids=str)
def test_direct_agrees_with_float64(case) -> None:
    check_case("direct", 1e-6, case)


WINOGRAD_CASES = [case for case in CASES if case[0] == 3 and case[1] == 1]


@pytest.mark.parametrize("case", WINOGRAD_CASES[::7], ids=str)
def test_winograd_agrees_with_float64(case) -> None:
    check_case("winograd", 5e-6, case)


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
def test_all_shapes_agree_with_float64(algorithm: str) -> None:
    for case in CASES if algorithm == "direct" else WINOGRAD_CASES:
        check_case(algorithm, 1e-6 if algorithm == "direct" else 5e-6, case)


@pytest.mark.parametrize(("height", "width", "channels"), [(8, 12, 1024), (16, 24, 512), (64, 96, 64)])
def test_winograd_keeps_its_error_bound_for_many_channels(height: int, width: int, channels: int) -> None:
    x, filters = random(1, height, width, channels, seed=1), random(3, 3, channels, channels, seed=2)
    check("winograd", 5e-6, x, filters, random(channels, seed=3), 1, "SAME")


@pytest.mark.timeout(60)  # which counted each pixel of a stride of 2**31
@pytest.mark.parametrize("strides", [(2**31 - 1, 1), (1, 2**31 - 1), (2**31 - 1, 2**31 - 1), (40, 3), (5, 9)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel", [1, 3])
def test_strides_beyond_the_image_cost_what_the_image_costs(strides, padding, kernel) -> None:
    x, filters, bias = random(2, 7, 9, 3, seed=1), random(kernel, kernel, 3, 4, seed=2), random(4, seed=3)
    check("direct", 1e-6, x, filters, bias, strides, padding)


# They are written past the caches where their rows are whole lines: 17 MB of 64 channels, not of 70.
@pytest.mark.parametrize(
    ("algorithm", "inputs", "outputs", "stride"),
    [
        ("direct", 4, 64, 1),
        ("direct", 64, 4, 2),
        ("direct", 4, 70, 1),
        ("winograd", 4, 64, 1),
        ("winograd", 64, 4, 1),
    ],
)
def test_results_too_large_for_the_caches_agree_with_float64(algorithm, inputs, outputs, stride) -> None:
    x, filters = random(1, 250, 271, inputs, seed=1), random(3, 3, inputs, outputs, seed=2)
    bound = 1e-6 if algorithm == "direct" else 5e-6
    check(algorithm, bound, x, filters, random(outputs, seed=3), stride, "SAME")


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


@pytest.mark.parametrize("algorithm", ["direct", "winograd", "auto"])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_gradients_agree_with_finite_differences(algorithm: str, padding: str) -> None:
    operands = [
        tf.constant(random(*shape, seed=i, dtype=np.float64))
        for i, shape in enumerate([(1, 6, 5, 2), (3, 3, 2, 3), (3,)])
    ]

    def once(*v):
        return tiled_conv2d(*v, padding=padding, algorithm=algorithm)

    theoretical, numerical = tf.test.compute_gradient(once, operands)
    error = max(np.abs(t - n).max() for t, n in zip(theoretical, numerical, strict=True))
    print(f"error {error:.1e}")  # shown by pytest -rP
    assert error < 1e-6


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


@pytest.mark.parametrize(
    ("image", "padding", "shape"),
    [([2, 0, 6, 3], "SAME", [2, 0, 6, 4]), ([1, 2, 6, 3], "VALID", [1, 0, 4, 4])],
)
def test_an_image_of_no_height_or_below_the_kernel_s_gives_an_empty_output(image, padding, shape) -> None:
    y = tiled_conv2d(tf.zeros(image), tf.zeros([3, 3, 3, 4]), padding=padding, algorithm="direct")
    assert y.shape == shape


def test_nan_stays_where_tensorflow_keeps_it_with_direct() -> None:
    x = random(1, 12, 12, 4, seed=1)
    x[0, 5, 5, 2] = np.nan
    filters = random(3, 3, 4, 5, seed=2)
    ours = tiled_conv2d(x, filters, algorithm="direct").numpy()
    theirs = tf.nn.conv2d(x, filters, 1, "SAME").numpy()
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))


def test_nan_spoils_no_more_than_its_tiles_with_winograd() -> None:
    x = random(1, 16, 16, 4, seed=1)
    x[0, 5, 5, 2] = np.nan
    filters = random(3, 3, 4, 5, seed=2)
    spoilt = np.isnan(tiled_conv2d(x, filters, algorithm="winograd").numpy())[0].any(-1)
    theirs = np.isnan(tf.nn.conv2d(x, filters, 1, "SAME").numpy())[0].any(-1)
    assert spoilt[theirs].all()
    assert not spoilt[8:].any()
    assert not spoilt[:, 8:].any()


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


def test_unknown_shapes_while_tracing() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 8])])
    def run(x):
        return tiled_conv2d(x, filters, activation="relu")

    filters = tf.constant(random(3, 3, 8, 16, seed=1))
    for shape in ((1, 9, 7, 8), (2, 30, 31, 8)):
        x = random(*shape, seed=2)
        assert relative(run(x), tf.nn.relu(tf.nn.conv2d(x, filters, 1, "SAME"))) < 5e-6


def test_auto_leaves_half_precision_to_tensorflow() -> None:
    x, filters = tf.ones([1, 4, 4, 2], tf.float16), tf.ones([3, 3, 2, 2], tf.float16)
    np.testing.assert_array_equal(tiled_conv2d(x, filters), tf.nn.conv2d(x, filters, 1, "SAME"))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"dilations": 2}, ValueError, "tf.nn.conv2d"),
        ({"strides": 0}, ValueError, "positive"),
        ({"strides": (1, 2, 3)}, ValueError, "positive"),
        ({"padding": "FULL"}, ValueError, "SAME"),
        ({"activation": "gelu"}, ValueError, "relu"),
        ({"algorithm": "fft"}, ValueError, "winograd"),
        ({"algorithm": "winograd", "strides": 2}, ValueError, "strides of 1"),
    ],
)
def test_bad_arguments_are_named(kwargs, error, message) -> None:
    with pytest.raises(error, match=message):
        tiled_conv2d(tf.zeros([1, 5, 5, 2]), tf.zeros([3, 3, 2, 2]), **kwargs)


@pytest.mark.parametrize(
    "value",
    [None, "x", range(10**18), {"a": 1}, {1.0}, iter([1.0]), object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_tensor_is_refused_without_looking_at_what_is_in_it(value) -> None:
    for name in ("x", "filters"):
        given = {"x": tf.zeros([1, 5, 5, 2]), "filters": tf.zeros([3, 3, 2, 2])} | {name: value}
        with pytest.raises(TypeError, match=f"{name} must be a tensor or an array, got"):
            tiled_conv2d(**given)


def test_channels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="4 channels"):
        tiled_conv2d(tf.zeros([1, 5, 5, 4]), tf.zeros([3, 3, 2, 2]))


def test_mismatches_found_only_at_run_time_are_errors_not_crashes() -> None:
    operations = library.load()
    x, filters, none = tf.zeros([1, 5, 5, 2]), tf.zeros([3, 3, 2, 4]), tf.zeros([0])
    invalid = tf.errors.InvalidArgumentError
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d(x, filters, tf.zeros([3]))
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d(x, tf.zeros([5, 5, 2, 4]), none, algorithm="winograd")
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d(x, filters, none, strides=[1, 1, 1])
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d_backprop_input([1, 5, 5, 2], filters, tf.zeros([1, 4, 5, 4]))
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d_backprop_input([-1, 5, 5, 2], filters, tf.zeros([1, 5, 5, 4]))
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d_backprop_filter(x, [3, 3, 7, 4], tf.zeros([1, 5, 5, 4]))
    with pytest.raises(invalid):
        operations.overlap_tiled_conv2d_epilogue_grad(tf.zeros([1, 5]), tf.zeros([1, 4]))


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

    def gradients(x, filters):
        with tf.GradientTape() as tape:
            tape.watch([x, filters])
            y = tiled_conv2d(x, filters, activation="relu")
        return tape.gradient(y, [x, filters])

    specs = tf.TensorSpec((2, 8, 8, 3)), tf.TensorSpec((3, 3, 3, 5))
    graph = tf.function(gradients, autograph=False).get_concrete_function(*specs).graph
    operations = {operation.type: operation for operation in graph.get_operations()}
    assert "Conv2D" in operations
    assert "OverlapTiledConv2D" not in operations
    assert operations["OverlapTiledConv2DBackpropInput"].get_attr("algorithm") == b"direct"
    assert operations["OverlapTiledConv2DBackpropFilter"].get_attr("algorithm") == b"winograd"


def test_a_model_with_it_can_be_exported(tmp_path) -> None:
    module = tf.Module()
    filters = tf.constant(random(3, 3, 3, 5, seed=1))
    module.run = tf.function(
        lambda x: tiled_conv2d(x, filters), input_signature=[tf.TensorSpec([None, 8, 8, 3])], autograph=False
    )
    tf.saved_model.save(module, str(tmp_path))
    x = tf.constant(random(2, 8, 8, 3, seed=2))
    np.testing.assert_allclose(tf.saved_model.load(str(tmp_path)).run(x), module.run(x), rtol=1e-6)


ARGUMENTS = [
    {"filters": 5, "kernel_size": 3},
    {"filters": 5, "kernel_size": (3, 2), "strides": 2, "padding": "same", "activation": "relu"},
    {"filters": 16, "kernel_size": 3, "padding": "same", "activation": "gelu", "use_bias": False},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
def test_same_arguments_weights_and_results_as_conv2d(arguments) -> None:
    images = np.random.default_rng(0).standard_normal((2, 9, 11, 4)).astype("float32")
    theirs, ours = keras.layers.Conv2D(**arguments), TiledConv2D(**arguments)
    want = theirs(images)
    ours.build(images.shape)
    ours.set_weights(theirs.get_weights())
    np.testing.assert_allclose(ours(images), want, rtol=1e-4, atol=1e-5)
    assert ours.compute_output_shape(images.shape) == theirs.compute_output_shape(images.shape)


def test_saved_and_loaded_like_conv2d(tmp_path) -> None:
    images = np.random.default_rng(0).standard_normal((2, 9, 11, 4)).astype("float32")
    model = keras.Sequential(
        [keras.Input((9, 11, 4)), TiledConv2D(6, 3, activation="relu", algorithm="winograd")]
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].algorithm == "winograd"
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
