"""What a Keras model is to the scheduler: its inputs, a graph of layers, and the functions that compute them.

Functional and Sequential models are split at every layer, as far as a call of the model does no more than its
graph says. All others stay whole.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import graphs as keras_graphs
from overlap_train._keras import models as keras_models
from overlap_train._support.arguments import short_repr
from overlap_train.scheduling.calls import (
    Call,
    calls_of,
    cut_call,
    fold_calls,
    is_large,
    tensor_bytes,
    work_of,
)
from overlap_train.scheduling.graph import REQUEST, Layer, LayerGraph, Port

_SPECS = "pass input_specs=(tf.TensorSpec(...),)"


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model, flat, in Keras's order."""

    specs: tuple[tf.TensorSpec, ...]
    names: tuple[str, ...] = ()
    structure: Any = None  # the symbolic inputs as they are nested
    shows_dtypes: bool = False  # to custom code, which may tell bytes from floats

    def flatten(self, model: str, x: Any) -> tuple[Any, ...]:
        """Return what a user passes as arrays with the batch first."""
        flat = keras.tree.flatten(self._in_order(model, x))
        if len(flat) != len(self.specs):
            is_list = isinstance(x, (list, tuple))
            remedy = "; a list is one value for each input: pass an array" if is_list else ""
            raise ValueError(f"x of {model!r} takes {len(self.specs)} inputs, got {len(flat)}{remedy}")
        arrays = tuple(self._array(model, number, value) for number, value in enumerate(flat))
        shapes = [array.shape for array in arrays]
        lengths = {shape[:1] for shape in shapes}
        if len(lengths) != 1 or lengths == {()} or lengths == {(0,)}:
            raise ValueError(
                f"x of {model!r}: its inputs need one batch dimension of the same size above 0, got shapes "
                f"{shapes}"
            )
        return arrays

    def pack(self, flat: Sequence[Any]) -> Any:
        """Return flat inputs, nested as the model takes them."""
        if self.structure is not None:
            return keras.tree.pack_sequence_as(self.structure, list(flat))
        return flat[0] if len(flat) == 1 else list(flat)

    def _in_order(self, model: str, x: Any) -> Any:
        """Return inputs by name in the order of a model that has them by place."""
        if not isinstance(x, Mapping):
            if isinstance(self.structure, dict) and list(self.structure) != sorted(self.structure):
                expected = f"a dict with {list(self.structure)}"
                raise ValueError(f"x of {model!r} takes {expected}, got {short_repr(type(x))}")
            return x
        missing = [name for name in self.names if name not in x]
        if isinstance(self.structure, dict) or not self.names:
            return x
        if missing:
            expected = f"inputs named {list(self.names)}"
            raise ValueError(f"x of {model!r} takes {expected}, got {sorted(map(str, x))}")
        return [x[name] for name in self.names]

    def _array(self, model: str, number: int, value: Any) -> Any:
        spec, name = self.specs[number], self.names[number] if self.names else str(number)
        array = _as_array(model, name, value, None)
        kind, wants_text = array.dtype.kind, spec.dtype == tf.string
        lost = kind == "c" and not spec.dtype.is_complex  # the imaginary part
        seen = self.shows_dtypes and kind in "iub" and array.dtype != spec.dtype.as_numpy_dtype
        if lost or seen or (wants_text != (kind in "OSUT") and (wants_text or kind in "SUT")):
            raise TypeError(f"x of {model!r}: the input {name!r} takes {spec.dtype.name}, got {array.dtype}")
        array = _as_array(model, name, value, spec.dtype.as_numpy_dtype)
        if array.ndim and not spec.shape.is_compatible_with(array.shape):
            expected = f"the input {name!r} takes {spec.shape}"
            raise ValueError(f"x of {model!r}: {expected}, got the shape {array.shape}")
        return array


def inputs_of(model: keras.Model, specs: Sequence[tf.TensorSpec], name: str) -> ModelInputs:
    """Return what a model takes."""
    symbolic = list(getattr(model, "inputs", None) or ())
    for tensor in symbolic:
        if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
            raise ValueError(
                f"{name}: the input {tensor.name!r} is sparse or ragged; requests bring arrays: declare it "
                "dense, and make it so in what is submitted"
            )
        if keras_graphs.is_optional(tensor):
            raise ValueError(f"{name}: the input {tensor.name!r} is optional; each request brings all inputs")
    if specs or not symbolic:
        if not specs:
            what = "a Sequential model that is not built" if _is_unbuilt(model) else "a subclassed model"
            remedy = "build it, or begin it with keras.Input" if _is_unbuilt(model) else _SPECS
            raise ValueError(f"{name}: {what} does not say what it reads; {remedy}")
        return ModelInputs(tuple(specs), structure=keras_graphs.input_structure(model))
    return ModelInputs(
        tuple(tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in symbolic),
        tuple(x.name for x in symbolic),
        keras_graphs.input_structure(model),
        shows_dtypes=keras_graphs.own_code_of(model) is not None,
    )


def _as_array(model: str, name: str, value: Any, dtype: Any) -> Any:
    """Return a value as an array, or raise TypeError for what is none, such as a ragged tensor."""
    try:
        return np.asarray(value, dtype)
    except Exception as error:  # a custom object may raise anything
        raise TypeError(
            f"x of {model!r}: the input {name!r} takes an array, got {short_repr(value)} ({error})"
        ) from error


def _is_unbuilt(model: keras.Model) -> bool:
    return isinstance(model, keras.Sequential) and not model.built


tracing = threading.Lock()
"""Held while a model is traced: its layers share Python state."""


class SplitModel(ABC):
    """A Keras model and its graph."""

    def __init__(self, graph: LayerGraph, inputs: ModelInputs, outputs: Any) -> None:
        """Take a graph of single layers, and outputs nested as a call nests them."""
        self.graph = graph
        self.inputs = inputs
        self._outputs = outputs

    @abstractmethod
    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port]
    ) -> Callable[..., list[Any]]:
        """Return the Python function of a segment, to be traced."""

    @abstractmethod
    def spec(self, port: Port) -> tf.TensorSpec:
        """Return the shape, with None for the batch, and the dtype of a tensor of the graph."""

    @property
    def keeps_rows(self) -> bool:
        """Whether the first dimension of every output is the batch, so that requests can share one."""
        leaves = [leaf for leaf in keras.tree.flatten(self._outputs) if leaf is not None]
        return all(len(leaf.shape) > 0 and leaf.shape[0] is None for leaf in leaves)

    def pack(self, outputs: Sequence[Any]) -> Any:
        """Return flat outputs, nested as a call of the model nests them."""
        remaining = iter(outputs)
        flat = [None if leaf is None else next(remaining) for leaf in keras.tree.flatten(self._outputs)]
        return keras.tree.pack_sequence_as(self._outputs, flat)


def spec_of(tensor: Any) -> tf.TensorSpec:
    """Return the shape, with None for the batch, and the dtype of a symbolic tensor."""
    # A number for the whole batch has no dimension that could be the batch.
    shape = (None, *tensor.shape[1:]) if len(tensor.shape) else ()
    return tf.TensorSpec(shape, tensor.dtype)


class WholeModel(SplitModel):
    """A graph of one layer, which calls the model."""

    def __init__(self, model: keras.Model, name: str, inputs: ModelInputs) -> None:
        self._model = model
        self._inputs = inputs
        # A layer that the graph calls with training=True would lose that to the caller's training=False.
        is_overridden = keras_models.overriding_class(model, "__call__") is not None
        leaves_phase = is_overridden or keras_graphs.trains_by_itself(model)
        self._kwargs = {} if leaves_phase else {"training": False}
        outputs = self._traced_outputs(name)
        specs = [spec for spec in keras.tree.flatten(outputs) if spec is not None]
        self._specs = {Port(REQUEST, n): spec for n, spec in enumerate(inputs.specs)}
        self._specs |= {Port(0, n): spec for n, spec in enumerate(specs)}
        layer = Layer(
            f"{name}/all",
            work_of(model, inputs.specs, specs),
            tuple(Port(REQUEST, n) for n in range(len(inputs.specs))),
            tuple(map(tensor_bytes, specs)),
        )
        graph = LayerGraph(
            [layer],
            [Port(0, n) for n in range(len(specs))],
            input_bytes=[tensor_bytes(x) for x in inputs.specs],
            name=name,
        )
        super().__init__(graph, inputs, outputs)

    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port]
    ) -> Callable[..., list[Any]]:
        """Return the call of the model; see `SplitModel.function`."""

        def segment(*args: Any) -> list[Any]:
            return [value for value in keras.tree.flatten(self._call(*args)) if value is not None]

        return segment

    def spec(self, port: Port) -> tf.TensorSpec:
        """Return the specification of an input or output; see `SplitModel.spec`."""
        return self._specs[port]

    def _call(self, *args: Any) -> Any:
        return self._model(self._inputs.pack(args), **self._kwargs)

    def _traced_outputs(self, name: str) -> Any:
        """Return specifications of what a call returns; Keras's symbolic call would follow the graph."""
        with tracing:
            concrete = tf.function(self._call, autograph=False).get_concrete_function(*self._inputs.specs)
        return keras.tree.map_structure(lambda leaf: _output_spec(leaf, name), concrete.structured_outputs)


def _output_spec(leaf: Any, name: str) -> tf.TensorSpec | None:
    if leaf is None:
        return None
    if not isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
        raise ValueError(
            f"{name} returns a {type(leaf).__name__.removesuffix('Spec')}, which is no array; let it return "
            "dense tensors"
        )
    return tf.TensorSpec(leaf.shape.as_list() if leaf.shape.rank is not None else (None,), leaf.dtype)


def split_model(
    model: Any,
    *,
    name: str | None = None,
    input_specs: Sequence[tf.TensorSpec] = (),
    fold: bool = False,
    cut: Callable[[str], Sequence[float]] | None = None,
) -> SplitModel:
    """Split a model into layers, folded by `fold_calls`, and large ones cut into shares of their output.

    `cut` returns the shares for the name of a layer in the graph; what may be cut takes in no addition. A
    subclassed model needs `input_specs`.
    """
    name = name or model.name
    functional = keras_graphs.stock_graph(model)
    inputs = inputs_of(model, () if functional is not None else input_specs, name)
    if functional is None or _stays_whole(model, functional):
        return WholeModel(model, name, inputs)
    calls = list(_named_apart(calls_of(functional)))
    if fold:
        calls = fold_calls(calls, functional.outputs, residuals=cut is None)
    if cut is not None:
        parts = [cut_call(x, cut(f"{name}/{x.name}")) if is_large(x) else [x] for x in calls]
        calls = [piece for pieces in parts for piece in pieces]
    return _FunctionalSplit(functional, name, calls, inputs) if calls else WholeModel(model, name, inputs)


def _stays_whole(model: Any, functional: Any) -> bool:
    """Whether masks, the training phase or more than arrays pass between layers; not so segments."""
    return (
        _has_masks(model)
        or keras_graphs.carries_more_than_arrays(functional)
        or keras_graphs.trains_by_itself(model)
    )


def _has_masks(model: Any) -> bool:
    return any(
        isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False)
        for layer in model._flatten_layers()
    )


def _named_apart(calls: Sequence[Call]) -> Iterator[Call]:
    """Number the calls of a layer that is called more than once."""
    counts: Counter[str] = Counter()
    for call in calls:
        counts[call.name] += 1
        again = counts[call.name] > 1
        yield replace(call, name=f"{call.name}#{counts[call.name]}") if again else call


class _FunctionalSplit(SplitModel):
    """A functional model, layer by layer."""

    def __init__(self, functional: Any, name: str, calls: Sequence[Call], inputs: ModelInputs) -> None:
        self._calls = calls
        self._tensors: dict[Port, Any] = {Port(REQUEST, n): x for n, x in enumerate(functional.inputs)}
        for index, call in enumerate(calls):
            self._tensors |= {Port(index, number): tensor for number, tensor in enumerate(call.outputs)}
        ports = {id(tensor): port for port, tensor in self._tensors.items()}
        graph = LayerGraph(
            [_layer(name, call, ports) for call in calls],
            [ports[id(tensor)] for tensor in functional.outputs],
            input_bytes=[tensor_bytes(x) for x in functional.inputs],
            name=name,
        )
        super().__init__(graph, inputs, keras_graphs.output_structure(functional))

    def function(
        self, reads: Sequence[Port], members: range, returns: Sequence[Port]
    ) -> Callable[..., list[Any]]:
        def segment(*args: Any) -> list[Any]:
            values = {id(self._tensors[port]): value for port, value in zip(reads, args, strict=True)}
            for index in members:
                call = self._calls[index]
                outputs = call.run([values[id(tensor)] for tensor in call.inputs])
                values.update(zip(map(id, call.outputs), outputs, strict=True))
            return [values[id(self._tensors[port])] for port in returns]

        return segment

    def spec(self, port: Port) -> tf.TensorSpec:
        return spec_of(self._tensors[port])


def _layer(name: str, call: Call, ports: Mapping[int, Port]) -> Layer:
    return Layer(
        f"{name}/{call.name}",
        call.work,
        tuple(ports[id(tensor)] for tensor in call.inputs),
        tuple(tensor_bytes(tensor) for tensor in call.outputs),
        alone=call.alone,
    )
