"""Shapes, dtypes and devices as users pass them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.zero_copy.arguments import any_dtype, checked_device, checked_dtype, checked_shape


@pytest.mark.parametrize(
    ("shape", "expected"),
    [(3, (3,)), ((), ()), ([2, np.int64(0)], (2, 0)), ((1,) * 32, (1,) * 32), ((1 << 58,), (1 << 58,))],
)
def test_a_shape_is_a_tuple_of_integers(shape, expected):
    assert checked_shape(shape) == expected
    assert all(type(dimension) is int for dimension in checked_shape(shape))


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        ("3", TypeError, "shape must be an integer or a sequence of them"),
        ((1, 2.5), TypeError, "shape must be"),
        (None, TypeError, "shape must be"),
        (True, TypeError, "shape must be"),
        ((2, -1), ValueError, r"negative dimension, got \(2, -1\)"),
        ((1,) * 33, ValueError, r"at most 32 dimensions, got \(1, 1"),
        (range(1, 10**18), ValueError, r"at most 32 dimensions, got range\(1, 10"),
        (((1 << 58) + 1,), ValueError, "more bytes than can be counted"),
    ],
)
def test_other_shapes_are_refused(shape, error, message):
    with pytest.raises(error, match=message):
        checked_shape(shape)


@pytest.mark.parametrize("dtype", ["float32", np.int8, tf.bool, np.dtype("complex128")])
def test_a_dtype_is_what_numpy_makes_of_it(dtype):
    expected = np.dtype(dtype.as_numpy_dtype if isinstance(dtype, tf.DType) else dtype)
    assert checked_dtype(dtype) == any_dtype(dtype) == expected


@pytest.mark.parametrize("dtype", ["S3", ">f4", object, "datetime64[s]"])
def test_a_dtype_that_cannot_be_shared_is_refused_with_those_that_can(dtype):
    assert any_dtype(dtype) == np.dtype(dtype)
    with pytest.raises(TypeError, match=r"a buffer holds one of bfloat16, bool, complex128.* got dtype"):
        checked_dtype(dtype)


@pytest.mark.parametrize("dtype", ["float31", 3.5, [1]])
def test_what_is_no_dtype_is_refused(dtype):
    with pytest.raises(TypeError, match="dtype must be one that NumPy knows"):
        any_dtype(dtype)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("CPU", None),
        ("cpu:0", None),
        ("/CPU:0", None),
        ("/job:localhost/replica:0/task:0/device:CPU:0", None),
        ("GPU", 0),
        ("gpu:3", 3),
        ("/device:GPU:12", 12),
    ],
)
def test_a_device_is_the_cpu_or_the_number_of_a_gpu(device, expected):
    assert checked_device(device) == expected


@pytest.mark.parametrize("device", ["CPU:1", "TPU:0", "GPU:x", "GPU:-1", "GPU:²", "", "GPU 0"])
def test_other_devices_are_refused(device):
    with pytest.raises(ValueError, match='device must be "CPU:0" or a GPU such as "GPU:0"'):
        checked_device(device)


def test_a_device_is_a_name():
    with pytest.raises(TypeError, match="device must be a name such as 'CPU:0', got 0"):
        checked_device(0)
