"""DLPack capsules over host or device memory, without TensorFlow and without a compiled part.

NumPy makes the capsule, and the device, which NumPy cannot express, is written into it afterwards. So the
deleter is always NumPy's own C function, which takes the GIL on whatever thread TensorFlow calls it and does
nothing once the interpreter has ended. A `ctypes` callback would crash there.

Nothing here holds state. Every function may be called from any thread.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_CUDA = 2  # kDLCUDA

_UNUSED = b"dltensor"
_USED = b"used_dltensor"


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    """The head of a `DLManagedTensor`, DLPack before version 1.0; TensorFlow takes no later one."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.restype = ctypes.c_int
_set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Keeper:
    """Keeps the owner of memory alive as long as an array or tensor shows that memory.

    A weak reference to it dies with the last of them, on any thread.
    """

    __slots__ = ("__array_interface__", "__weakref__", "owner")

    def __init__(self, address: int, shape: tuple[int, ...], dtype: DTypeLike, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            # Always said to be writable: NumPy exports no read-only array by DLPack to a consumer that
            # predates DLPack 1.0, and TensorFlow never writes to memory that it was lent.
            "data": (address, False),
        }


def view(keeper: Keeper) -> NDArray[Any]:
    """Return a C-contiguous array over the keeper's memory; it and its views keep the keeper alive."""
    return np.asarray(keeper)


def capsule(keeper: Keeper, *, gpu: int | None = None, address: int | None = None) -> Any:
    """Wrap the keeper's memory in an unused DLPack capsule; `address` is where the GPU finds it."""
    result = view(keeper).__dlpack__()
    if gpu is not None:
        tensor = _Tensor.from_address(_get_pointer(result, _UNUSED))
        tensor.device.device_type = _CUDA
        tensor.device.device_id = gpu
        tensor.data = address
    return result


def defuse(capsule: Any) -> None:
    """Mark a capsule as used, so that its destructor does not call the deleter a second time.

    Some consumers refuse a capsule after they have called its deleter, as TensorFlow does with one for a
    device that it lacks.
    """
    if ctypes.pythonapi.PyCapsule_IsValid(ctypes.py_object(capsule), _UNUSED):
        _set_name(capsule, _USED)
