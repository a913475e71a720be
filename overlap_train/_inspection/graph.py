"""The door to what TensorFlow has no public name for: about a traced graph, and about what a function takes.

`tests/inspection/test_graph.py` fails, name by name, when a new TensorFlow moves one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.util.structure import get_flat_tensor_shapes, get_flat_tensor_types
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import script_ops

__all__ = [
    "arithmetic",
    "call_with",
    "computation",
    "handle_spec",
    "iterator_over_nothing",
    "nested_operations",
    "outer_operations",
    "python_function",
    "sends_any_shape",
    "signatures_of",
    "written_inputs",
]


def call_with(concrete: Any, arguments: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Calls a concrete function with other tensors in place of those that it captured (`inference_fn`)."""
    return concrete.inference_fn.call_with_captures(tuple(arguments), {}, list(captured))


def handle_spec(tensor: Any) -> tuple[tf.DType, tf.TensorShape] | None:
    """Returns what a variable's handle leads to (`_handle_data`); None for all other tensors."""
    if tensor.dtype != tf.resource:
        return None
    data = getattr(tensor, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (content,) = data.shape_and_type
    return tf.dtypes.as_dtype(content.dtype), tf.TensorShape(content.shape)


def iterator_over_nothing(element_spec: Any) -> Any | None:
    """Returns an iterator of such batches that must not be drawn from; None where TensorFlow has none.

    It has no dataset (`OwnedIterator`, `get_flat_tensor_types`): making an empty one traces three functions,
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
    """Returns about how many floating-point operations a graph's products take, for batches of so many rows.

    A product of m×k and k×n numbers has m·n results of 2k operations each, and k² is mk·kn ÷ mn.
    """
    total = 0.0
    for operation in graph.get_operations():
        if operation.type in _PRODUCTS:
            shapes = [tensor.shape for tensor in (*operation.inputs[:2], operation.outputs[0])]
            a, b, c = (math.prod(rows if n is None else n for n in s or ()) for s in shapes)
            together = (
                math.prod(n or rows for n in (shapes[2] or ())[:-2]) if "Batch" in operation.type else 1
            )
            total += 2.0 * math.sqrt(a * b * c / max(1, together))
    return total


def written_inputs(graph: Any) -> set[int]:
    """Returns which inputs of a graph are resources that it may write to.

    TensorFlow orders operations by the same knowledge (`get_read_only_resource_input_indices_graph`): what is
    not known to read only counts as writing.
    """
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    return {
        index
        for index, tensor in enumerate(graph.inputs)
        if tensor.dtype == tf.resource and index not in read_only and tensor.consumers()
    }


def nested_operations(graph: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields the type and the name of all operations that a graph runs, and what runs them.

    That is the operation itself at the outer level. What functions inside it run is found in their
    definitions, in which there is no operation to be asked for its place in the program: there it is the
    name of the function. A call whose type is the name of a function, as that of a CTC loss, is left out.
    """
    functions = {function.signature.name: function for function in graph.as_graph_def().library.function}
    for operation in graph.get_operations():
        if operation.type not in functions:
            yield operation.type, operation.name, operation
    for name, function in functions.items():
        for node in function.node_def:
            if node.op not in functions:
                yield node.op, node.name, name


def sends_any_shape(graph: Any) -> bool:
    """Whether replicas send each other something whose shape is not known before it is computed.

    So it is with sparse gradients, whose rows are as many as the batch looks up. What functions inside the
    graph send has no shape that could be read here, and may have any.
    """
    return any(
        re.match(r"Collective(Reduce|Gather|AllToAll)", kind) is not None
        and (isinstance(runs, str) or not runs.inputs[0].shape.is_fully_defined())
        for kind, _, runs in nested_operations(graph)
    )


def outer_operations(graph: Any) -> dict[str, Any]:
    """Returns the operation at the outer level through which each function of a graph is run, by its name."""
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    found: dict[str, Any] = {}
    for outer in definition.node:
        waiting = [outer]
        while waiting:
            for name in _called_by(waiting.pop()):
                if name in functions and name not in found:
                    found[name] = graph.get_operation_by_name(outer.name)
                    waiting += functions[name].node_def
    return found


def _called_by(node: Any) -> Iterator[str]:
    yield node.op
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)


def python_function(token: bytes) -> Any:
    """Returns the Python function that an operation with this token calls, or None (`script_ops._py_funcs`).

    TensorFlow wraps it for `py_function` (`EagerFunc._func`) and against AutoGraph (`do_not_convert`).
    """
    found = script_ops._py_funcs.get(token.decode())
    found = getattr(found, "_func", found)
    wrapped = getattr(found, "__wrapped__", None)
    if wrapped is None and hasattr(found, "autograph_info__"):
        wrapped = next((cell.cell_contents for cell in found.__closure__ or ()), None)
    return found if wrapped is None else wrapped


def signatures_of(graph: Any, kind: str, attributes: Sequence[str]) -> set[tuple[int, ...]]:
    """Returns the types, as numbers of `tf.DType`, in attributes of the operations whose type begins so."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
    return {tuple(node.attr[name].type for name in attributes) for node in nodes if node.op.startswith(kind)}


def computation(graph: Any) -> tuple[Any, ...]:
    """Returns what a graph computes, comparable with that of another one: names do not count."""
    definition = graph.as_graph_def()
    functions = [
        _operations(function.node_def, [argument.name for argument in function.signature.input_arg])
        for function in definition.library.function
    ]
    return (_operations(definition.node), *sorted(functions))


def _operations(nodes: Iterable[Any], arguments: Iterable[str] = ()) -> tuple[Any, ...]:
    """Returns each operation as its type, its inputs by number and its attributes."""
    nodes = list(nodes)
    numbers = {name: f"argument {index}" for index, name in enumerate(arguments)}
    numbers |= {node.name: str(index) for index, node in enumerate(nodes)}
    messages = _messages(nodes)
    return tuple(
        (node.op, _inputs(node, numbers), () if node.name in messages else _attributes(node))
        for node in nodes
    )


def _messages(nodes: Sequence[Any]) -> set[str]:
    """Returns the names of the texts that only a failed assertion would print; they tell names."""
    texts = {
        node.name
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == tf.string.as_datatype_enum
    }
    others = {name.split(":")[0] for node in nodes if node.op != "Assert" for name in node.input}
    return texts - others


def _inputs(node: Any, numbers: dict[str, str]) -> tuple[str, ...]:
    """Returns the inputs of an operation, by the numbers of those that they come from.

    What it only waits for comes last and sorted by number, as TensorFlow has it sorted by name.
    """
    inputs = [_numbered(name, numbers) for name in node.input]
    waits = sorted(name for name in inputs if name.startswith("^"))
    return (*(name for name in inputs if not name.startswith("^")), *waits)


def _numbered(name: str, numbers: dict[str, str]) -> str:
    control = "^" if name.startswith("^") else ""
    first, *rest = name.removeprefix("^").split(":")
    return ":".join([control + numbers.get(first, first), *rest])


def _attributes(node: Any) -> tuple[tuple[str, bytes], ...]:
    kept = []
    for name in sorted(node.attr):
        value = node.attr[name]
        named = value.HasField("func") or (value.HasField("list") and value.list.func)
        if not (named or name.startswith("_") or name in ("shared_name", "container")):
            kept.append((name, value.SerializeToString(deterministic=True)))
    return tuple(kept)
