"""The native library, loaded into TensorFlow once per process.

Shared state: `_state`, under `_lock`. Whoever needs the library first builds and loads it; other threads
wait.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from overlap_train.conv.bundled import bundled_library
from overlap_train.conv.gradients import register_gradients
from overlap_train.errors import NativeUnavailableError

__all__ = [
    "has_cuda",
    "helps_accepted",
    "instruction_set",
    "is_available",
    "is_built",
    "is_switched_off",
    "load",
    "warn_unavailable_once",
]

_OPERATIONS = (
    "overlap_tiled_conv2d",
    "overlap_tiled_conv2d_backprop_input",
    "overlap_tiled_conv2d_backprop_filter",
    "overlap_tiled_conv2d_epilogue_grad",
    "overlap_depthwise_conv2d_backprop_filter",
)

_log = logging.getLogger("overlap_train.conv")


@dataclass
class _State:
    operations: Any = None
    instruction_set: str = ""
    has_cuda: bool = False
    helps_accepted: Callable[[], int] = lambda: 0
    failure: NativeUnavailableError | None = None
    warned: bool = False


_state = _State()
_lock = threading.Lock()


def load() -> Any:
    """Builds the library if need be and returns TensorFlow's wrapper module of its operations. Any thread.

    Where that fails, each later call raises the same NativeUnavailableError.
    """
    with _lock:
        if _state.operations is not None:
            return _state.operations
        if _state.failure is not None:
            raise NativeUnavailableError(str(_state.failure)) from _state.failure
        try:
            _load_locked()
        except NativeUnavailableError as error:
            _state.failure = error
            raise
        return _state.operations


def is_switched_off() -> bool:
    """Whether the user wants TensorFlow's convolutions (`OVERLAP_TRAIN_CONV_DISABLE`). Any thread."""
    return os.environ.get("OVERLAP_TRAIN_CONV_DISABLE", "0") not in ("", "0")


def _wants_cuda() -> bool:
    return os.environ.get("OVERLAP_TRAIN_CONV_CUDA", "0") not in ("", "0")


def _load_locked() -> None:
    if is_switched_off():
        raise NativeUnavailableError(
            "The tiled convolution is switched off by OVERLAP_TRAIN_CONV_DISABLE; unset it."
        )
    bundled = None if _wants_cuda() else bundled_library()
    if bundled is not None:
        try:
            _adopt(bundled)
            return
        except NativeUnavailableError as error:
            _log.info("%s", error)  # compiled again below, for this machine
    # Imported here, or `python -m overlap_train.conv.build` would find itself imported before it runs.
    from overlap_train.conv.build import build

    _adopt(build(cuda=_wants_cuda()))


def _adopt(path: Path) -> None:
    """Loads a library into TensorFlow."""
    try:
        operations = tf.load_op_library(str(path))
        handle = ctypes.CDLL(str(path))
        handle.overlap_conv_instruction_set.restype = ctypes.c_char_p
        instruction_set = handle.overlap_conv_instruction_set().decode()
        handle.overlap_conv_helps_accepted.restype = ctypes.c_int64
        missing = [name for name in _OPERATIONS if not hasattr(operations, name)]
        if missing:
            raise AttributeError(f"it has no operation {missing[0]}")
    except (tf.errors.OpError, OSError, AttributeError, ValueError) as error:
        raise NativeUnavailableError(
            f"TensorFlow cannot load {path}: {error}. "
            "Build it again: python -m overlap_train.conv.build --force"
        ) from error
    _state.instruction_set = instruction_set
    _state.helps_accepted = handle.overlap_conv_helps_accepted
    _state.has_cuda = hasattr(handle, "overlap_conv_forward_cuda")
    register_gradients(operations)  # an operation is not to be had without its gradient
    _state.operations = operations


def is_available() -> bool:
    """Return whether the compiled convolution runs here; builds it first if need be. Any thread."""
    try:
        load()
    except NativeUnavailableError:
        return False
    return True


def is_built() -> bool:
    """Whether the native convolution is loaded, came with the package or is in the cache; never builds it.

    Any thread.
    """
    if _state.operations is not None:
        return True
    if _state.failure is not None or is_switched_off():
        return False
    if not _wants_cuda() and bundled_library() is not None:
        return True
    from overlap_train.conv.build import is_cached

    return is_cached(cuda=_wants_cuda())


def instruction_set() -> str:
    """Return which kernels run on this CPU: "avx512", "avx2" or "portable".

    Raises:
        NativeUnavailableError: the library cannot be built or loaded here.
    """
    load()
    return _state.instruction_set


def has_cuda() -> bool:
    """Whether the loaded library has CUDA kernels; False where there is no library."""
    return is_available() and _state.has_cuda


def warn_unavailable_once() -> None:
    """Says, once per process, that tf.nn.conv2d is used because there is no native library, and why."""
    with _lock:
        if _state.failure is None or _state.warned:
            return
        _state.warned = True
    _log.warning("tiled_conv2d uses tf.nn.conv2d: %s", _state.failure)


def helps_accepted() -> int:
    """How often in this process a thread without an operation to run has helped a convolution. Any thread."""
    return _state.helps_accepted()
