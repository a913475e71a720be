"""Capsules of DLPack say where memory is, what is in it, and keep it as long as anybody reads it."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.zero_copy import dlpack


class Owner:
    """Owns some memory."""

    def __init__(self, array):
        self.array = array
        self.address = array.ctypes.data


def keeper_of(array):
    owner = Owner(array)
    return dlpack.Keeper(owner.address, array.shape, array.dtype, owner), weakref.ref(owner)


def head_of(capsule):
    return dlpack._Tensor.from_address(dlpack._get_pointer(capsule, b"dltensor"))


def is_unused(capsule):
    return bool(ctypes.pythonapi.PyCapsule_IsValid(ctypes.py_object(capsule), b"dltensor"))


def aligned(count, dtype="float32"):
    """Returns an array as TensorFlow shares it without a copy: begun at 64 bytes."""
    raw = np.zeros(count * np.dtype(dtype).itemsize + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + count * np.dtype(dtype).itemsize].view(dtype)


def test_a_capsule_for_the_gpu_carries_device_and_mapped_address():
    keeper, _ = keeper_of(aligned(16).reshape(4, 4))
    capsule = dlpack.capsule(keeper, device=dlpack.CUDA, index=1, address=0x1000)
    head = head_of(capsule)
    assert (head.device.device_type, head.device.device_id, head.data) == (2, 1, 0x1000)
    assert (head.dtype.code, head.dtype.bits, head.byte_offset) == (2, 32, 0)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_integers_of_16_bits_may_be_bfloat16(bfloat16):
    array = aligned(4, "uint16")
    array[:] = 0x3F80  # 1.0 as a bfloat16
    keeper, _ = keeper_of(array)
    tensor = tf.experimental.dlpack.from_dlpack(dlpack.capsule(keeper, bfloat16=bfloat16))
    assert tensor.dtype == (tf.bfloat16 if bfloat16 else tf.uint16)
    assert tf.cast(tensor, tf.float32).numpy().tolist() == ([1.0] * 4 if bfloat16 else [0x3F80] * 4)


def test_a_capsule_that_nobody_takes_lets_the_owner_go():
    keeper, owner = keeper_of(aligned(4))
    capsule = dlpack.capsule(keeper)
    del keeper
    assert owner() is not None
    del capsule
    assert owner() is None


def test_a_capsule_is_marked_as_used_once():
    keeper, _ = keeper_of(aligned(4))
    capsule = dlpack.capsule(keeper)
    assert is_unused(capsule)
    dlpack.defuse(capsule)
    assert not is_unused(capsule)
    dlpack.defuse(capsule)
