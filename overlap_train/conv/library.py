"""The native library, loaded into TensorFlow once per process, and the derivatives of its operations.

Shared state: `_state`, under `_lock`. The first thread that needs the library builds and loads it, the others
wait. The first derivative of a convolution uses our operations. Second derivatives use TensorFlow's, as they
are too rare for their speed to matter.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from overlap_train.conv.native_cache import bundled_library
from overlap_train.errors import NativeUnavailableError


class Differentiable(Hashable, Protocol):
    """A computation with its derivatives; equal to all others that have the same ones."""

    def gradients(self, dy: tf.Tensor, y: tf.Tensor, *inputs: tf.Tensor) -> Sequence[tf.Tensor]:
        """Return the gradients to all inputs from that of the output."""


def record_gradient(computation: Differentiable, inputs: tuple[tf.Tensor, ...], y: tf.Tensor) -> None:
    """Give `y` the computation's derivatives in place of those of the operations that computed it.

    In a graph, tf.custom_gradient would register a function for each call, which keeps the graph alive.
    """
    with _registering:
        name = _registered(computation)
    tf.__internal__.record_gradient(name, inputs, (), (y,))


_registering = threading.Lock()


@functools.cache
def _registered(computation: Differentiable) -> str:
    """Register the gradients with TensorFlow; return their name."""
    name = f"OverlapTrain{computation}"

    def gradient(op: Any, dy: tf.Tensor) -> Sequence[tf.Tensor]:
        return computation.gradients(dy, op.outputs[0], *op.inputs)

    tf.RegisterGradient(name)(gradient)
    return name


def bias_gradient(dz: tf.Tensor) -> tf.Tensor:
    """Sum [batch, height, width, channels] over the pixels, row by row, as one long sum loses digits."""
    return tf.reduce_sum(tf.reduce_sum(dz, 2), [0, 1])


@functools.cache  # TensorFlow takes one gradient for each operation and process
def register_gradients(operations: Any) -> None:
    """Register the derivatives of the native operations with TensorFlow; `_lock` is held."""

    def forward_gradient(op: Any, dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        x, filters, bias = op.inputs
        if op.get_attr("activation") == b"relu":
            dz, dbias = operations.overlap_tiled_conv2d_epilogue_grad(dy, op.outputs[0])
        else:
            dz, dbias = dy, bias_gradient(dy)
        window = _window(op) | {"algorithm": op.get_attr("algorithm").decode(), "share": op.get_attr("share")}
        dx = operations.overlap_tiled_conv2d_backprop_input(tf.shape(x), filters, dz, **window)
        dfilters = operations.overlap_tiled_conv2d_backprop_filter(x, tf.shape(filters), dz, **window)
        # Without a bias its input is empty, and so is its gradient.
        return dx, dfilters, tf.reshape(dbias[: tf.size(bias)], tf.shape(bias))

    tf.RegisterGradient("OverlapTiledConv2D")(forward_gradient)
    tf.RegisterGradient("OverlapTiledConv2DBackpropInput")(_input_gradient_gradient)
    tf.RegisterGradient("OverlapTiledConv2DBackpropFilter")(_filter_gradient_gradient)
    tf.RegisterGradient("OverlapTiledConv2DEpilogueGrad")(_epilogue_gradient_gradient)
    tf.RegisterGradient("OverlapDepthwiseConv2DBackpropFilter")(_depthwise_gradient_gradient)


def _window(op: Any) -> dict[str, Any]:
    return {"strides": list(op.get_attr("strides")), "padding": op.get_attr("padding").decode()}


def _stock_window(op: Any) -> dict[str, Any]:
    height, width = op.get_attr("strides")
    return {"strides": [1, height, width, 1], "padding": op.get_attr("padding").decode()}


def _input_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[None, tf.Tensor, tf.Tensor]:
    _, filters, dy = op.inputs
    window = _stock_window(op)
    by_filter = tf.raw_ops.Conv2DBackpropFilter(
        input=grad, filter_sizes=tf.shape(filters), out_backprop=dy, **window
    )
    return None, by_filter, tf.nn.conv2d(grad, filters, **window)


def _filter_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
    x, _, dy = op.inputs
    window = _stock_window(op)
    by_input = tf.raw_ops.Conv2DBackpropInput(input_sizes=tf.shape(x), filter=grad, out_backprop=dy, **window)
    return by_input, None, tf.nn.conv2d(x, grad, **window)


def _epilogue_gradient_gradient(op: Any, by_sum: tf.Tensor, by_bias: tf.Tensor) -> tuple[tf.Tensor, None]:
    y = op.inputs[1]
    return tf.where(y > 0, by_sum + by_bias, tf.zeros_like(y)), None


def _depthwise_gradient_gradient(op: Any, grad: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
    x, _, dy = op.inputs
    window = _stock_window(op)
    by_input = tf.nn.depthwise_conv2d_backprop_input(tf.shape(x), grad, dy, **window)
    return by_input, None, tf.nn.depthwise_conv2d(x, grad, **window)


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
    count_runs: Callable[[int], Any] = lambda change: None
    failure: NativeUnavailableError | None = None
    warned: bool = False


_state = _State()
_lock = threading.Lock()


def load() -> Any:
    """Return TensorFlow's wrapper module of the operations, after a build if need be. Any thread.

    If that fails, each later call raises the same NativeUnavailableError.
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
    from overlap_train.conv.build import build

    _adopt(build(cuda=_wants_cuda()))


def _adopt(path: Path) -> None:
    """Load a library into TensorFlow."""
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
            f"TensorFlow cannot load {path}: {error}. Build it again: overlap-train build --force"
        ) from error
    _state.instruction_set = instruction_set
    _state.helps_accepted = handle.overlap_conv_helps_accepted
    _state.count_runs = handle.overlap_conv_count_runs
    _state.has_cuda = hasattr(handle, "overlap_conv_forward_cuda")
    register_gradients(operations)  # before any thread can use an operation
    _state.operations = operations


def is_available() -> bool:
    """Return whether the compiled convolution runs here; build it first if necessary. Any thread."""
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
    """Log, once per process, that and why tf.nn.conv2d is used in place of the native library."""
    with _lock:
        if _state.failure is None or _state.warned:
            return
        _state.warned = True
    _log.warning("tiled_conv2d uses tf.nn.conv2d: %s", _state.failure)


def helps_accepted() -> int:
    """Return how often an idle thread has helped a convolution in this process. Any thread."""
    return _state.helps_accepted()


def count_runs(change: int) -> None:
    """Note that a run of a network begins (1) or ends (-1). Any thread.

    While each core has a run, no thread helps with another's convolution.
    """
    _state.count_runs(change)
