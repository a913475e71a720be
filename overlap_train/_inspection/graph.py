"""Traced graphs by names that TensorFlow does not publish.

`tests/inspection/test_graph.py` fails, name by name, when a new TensorFlow moves one.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.util.structure import get_flat_tensor_shapes, get_flat_tensor_types
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import script_ops


def call_with(concrete: Any, arguments: Sequence[Any], others: Mapping[int, Any]) -> Any:
    """Call a concrete function with other tensors in place of captures, by their `id` (`inference_fn`)."""
    captured = [others.get(id(tensor), tensor) for tensor in concrete.captured_inputs]
    return concrete.inference_fn.call_with_captures(tuple(arguments), {}, captured)


def captures(concrete: Any) -> list[tuple[int, Any]]:
    """Return the tensors that a concrete function captured, each with the number of its graph's input."""
    captured = concrete.captured_inputs
    return list(enumerate(captured, len(concrete.graph.inputs) - len(captured)))


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the definitions of all operations of a graph and of the functions that it calls."""
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def


def handle_spec(tensor: Any) -> tuple[tf.DType, tf.TensorShape] | None:
    """Return dtype and shape of the variable behind a handle (`_handle_data`); None for other tensors."""
    if tensor.dtype != tf.resource:
        return None
    data = getattr(tensor, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (content,) = data.shape_and_type
    return tf.dtypes.as_dtype(content.dtype), tf.TensorShape(content.shape)


def iterator_over_nothing(element_spec: Any) -> Any | None:
    """Return an iterator of the type of a dataset's that must not be drawn from; None if there is none.

    It has no dataset (`OwnedIterator`, `get_flat_tensor_types`): an empty one would trace three functions,
    which takes longer than a small fit.
    """
    try:
        resource = tf.raw_ops.AnonymousIteratorV3(
            output_types=get_flat_tensor_types(element_spec),
            output_shapes=get_flat_tensor_shapes(element_spec),
        )
        return OwnedIterator(components=[resource], element_spec=element_spec)
    except (TypeError, ValueError):
        return None


_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "Conv2D")


def arithmetic(graph: Any, rows: int) -> float:
    """Return about how many floating-point operations a graph's products take for batches of `rows` rows.

    A product of m×k and k×n numbers has m·n results of 2k operations each, and k² is mk·kn ÷ mn.
    """
    total = 0.0
    for operation in graph.get_operations():
        if operation.type in _PRODUCTS:
            shapes = [tensor.shape for tensor in (*operation.inputs[:2], operation.outputs[0])]
            a, b, c = (math.prod(rows if n is None else n for n in s or ()) for s in shapes)
            products = shapes[2][:-2] if "Batch" in operation.type and shapes[2] else ()
            total += 2.0 * math.sqrt(a * b * c / max(1, math.prod(n or rows for n in products)))
    return total


def written_inputs(graph: Any) -> set[int]:
    """Return the numbers of the resource inputs to which a graph may write, as TensorFlow knows them."""
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    return {
        index
        for index, tensor in enumerate(graph.inputs)
        if tensor.dtype == tf.resource and index not in read_only and tensor.consumers()
    }


def nested_operations(graph: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield the type and the name of all operations that a graph runs, and at the outer level the operation.

    Those in a function's definition have no place in the program. A call whose type is the name of a
    function, as in a CTC loss, is left out.
    """
    functions = {function.signature.name: function for function in graph.as_graph_def().library.function}
    for operation in graph.get_operations():
        if operation.type not in functions:
            yield operation.type, operation.name, operation
    for function in functions.values():
        for node in function.node_def:
            if node.op not in functions:
                yield node.op, node.name, None


def is_custom(operation: tf.Operation) -> bool:
    """Whether code other than Keras's and TensorFlow's has made an operation of a traced step.

    Nobody knows who has made the operations of a function that it calls.
    """
    files = (frame.filename for frame in reversed(operation.traceback))
    maker = next((file for file in files if not file.startswith(_KERAS)), _OURS)
    return not maker.startswith(_OURS) or operation.type.endswith("PartitionedCall")


_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_KERAS = tuple(
    f"{Path(module.__file__).parents[1] / name}{os.sep}"
    for module in (keras, tf)
    for name in ("keras", "optree", "tensorflow")
)


def sends_any_shape(graph: Any) -> bool:
    """Whether replicas may send each other tensors of unknown shape, such as sparse gradients."""
    return any(
        re.match(r"Collective(Reduce|Gather|AllToAll)", kind) is not None
        and (operation is None or not operation.inputs[0].shape.is_fully_defined())
        for kind, _, operation in nested_operations(graph)
    )


def python_function(token: bytes) -> Any:
    """Return the Python function that an operation with this token calls, or None (`script_ops._py_funcs`).

    TensorFlow wraps it for `py_function` (`EagerFunc._func`) and against AutoGraph (`do_not_convert`).
    """
    function = script_ops._py_funcs.get(token.decode())
    function = getattr(function, "_func", function)
    inner = getattr(function, "__wrapped__", None)
    if inner is None and hasattr(function, "autograph_info__"):
        inner = next((cell.cell_contents for cell in function.__closure__ or ()), None)
    return function if inner is None else inner
