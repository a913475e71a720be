"""Traced graphs by names that TensorFlow does not publish.

`tests/inspection/test_graph.py` fails, name by name, when a new TensorFlow moves one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.util.structure import get_flat_tensor_shapes, get_flat_tensor_types
from tensorflow.python.framework import auto_control_deps_utils
from tensorflow.python.ops import script_ops


def call_with(concrete: Any, arguments: Sequence[Any], captured: Sequence[Any]) -> Any:
    """Call a concrete function with other tensors in place of its captures (`inference_fn`)."""
    return concrete.inference_fn.call_with_captures(tuple(arguments), {}, list(captured))


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


# Operations that change variables, themselves or in what they call.
_CHANGES = re.compile("Assign(Add|Sub)?VariableOp|RngReadAndSkip|RngSkip|If|While|StatefulPartitionedCall")
# Calls of functions, which TensorFlow puts in place of the call.
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def without_arguments(concrete: Any) -> Callable[[], Any] | None:
    """Return a compiled call of what a function changes whatever its arguments are; None if that is nothing.

    So a function changes what it counts, but no variable to which it writes what comes of an argument.
    """
    parts = list(_parts_without_arguments(concrete.graph, dict(zip(*_captured(concrete), strict=True))))
    if not parts:
        return None

    def change() -> tf.Tensor:
        inside, made = tf.compat.v1.get_default_graph(), []
        for part, changes, captured in parts:
            handles = {name: inside.capture(tensor) for name, tensor in captured.items()}
            made += tf.graph_util.import_graph_def(part, handles, return_elements=changes, name="")
        with tf.control_dependencies(made):
            return tf.constant(True)

    function: Callable[[], Any] = tf.function(change, autograph=False).get_concrete_function()
    return function


def _parts_without_arguments(
    graph: Any, captured: Mapping[str, Any]
) -> Iterator[tuple[Any, Sequence[str], Mapping[str, Any]]]:
    """Yield the nodes that change what no argument decides, which of them do so, and their captures."""
    arguments = {tensor.op.name for tensor in graph.inputs if tensor.name not in captured}
    dependent, changes, calls = set(arguments), [], []
    for operation in graph.get_operations():  # in the order in which they were made
        behind = any(each.name in dependent for each in operation.control_inputs)
        if operation.name in arguments or behind or any(t.op.name in dependent for t in operation.inputs):
            dependent.add(operation.name)
            if operation.type in _CALLS and not behind:
                calls.append(operation)
        elif _CHANGES.fullmatch(operation.type):
            changes.append(operation.name)
    if changes:
        names = _needed(graph, changes)
        part = graph.as_graph_def()
        nodes = [node for node in part.node if node.name in names]
        for node in nodes:
            node.attr.pop("_class", None)  # which may name an operation that is left out
        del part.node[:]
        part.node.extend(nodes)
        yield part, changes, {n: tensor for n, tensor in captured.items() if n.partition(":")[0] in names}
    for call in calls:
        function = graph._get_function(call.get_attr("f").name)
        attributes = (*function.cached_definition.attr, *call.node_def.attr)
        if not {"_XlaMustCompile", "_noinline"} & set(attributes):  # which run whole
            inputs = zip(function.graph.inputs, call.inputs, strict=True)
            handles = {own.name: captured[t.name] for own, t in inputs if t.name in captured}
            yield from _parts_without_arguments(function.graph, handles)


def _needed(graph: Any, operations: Sequence[str]) -> set[str]:
    """Return the names of what operations run behind, and their own."""
    names, left = set(operations), list(operations)
    while left:
        operation = graph.get_operation_by_name(left.pop())
        before = {t.op.name for t in operation.inputs} | {each.name for each in operation.control_inputs}
        left += before - names
        names |= before
    return names


def _captured(concrete: Any) -> tuple[list[str], list[Any]]:
    """Return the names of a function's inputs that are captures, and what they are."""
    captures = list(concrete.captured_inputs)
    inputs = concrete.graph.inputs[len(concrete.graph.inputs) - len(captures) :]
    return [tensor.name for tensor in inputs], captures


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


def signatures_of(graph: Any, kind: str, attributes: Sequence[str]) -> set[tuple[int, ...]]:
    """Return the dtypes, as enum numbers, in attributes of the operations whose type begins with `kind`."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
    return {tuple(node.attr[name].type for name in attributes) for node in nodes if node.op.startswith(kind)}


def computation(graph: Any) -> tuple[Any, ...]:
    """Return a graph's computation without its names, to be compared with that of another graph."""
    definition = graph.as_graph_def()
    functions = [
        _operations(function.node_def, [argument.name for argument in function.signature.input_arg])
        for function in definition.library.function
    ]
    return (_operations(definition.node), *sorted(functions))


def _operations(nodes: Iterable[Any], arguments: Iterable[str] = ()) -> tuple[Any, ...]:
    """Return each operation as its type, its inputs by number and its attributes."""
    nodes = list(nodes)
    numbers = {name: f"argument {index}" for index, name in enumerate(arguments)}
    numbers |= {node.name: str(index) for index, node in enumerate(nodes)}
    messages = _messages(nodes)
    return tuple(
        (node.op, _inputs(node, numbers), () if node.name in messages else _attributes(node))
        for node in nodes
    )


def _messages(nodes: Sequence[Any]) -> set[str]:
    """Return the names of the texts that only a failed assertion would print, since they contain names."""
    texts = {
        node.name
        for node in nodes
        if node.op == "Const" and node.attr["dtype"].type == tf.string.as_datatype_enum
    }
    others = {name.split(":")[0] for node in nodes if node.op != "Assert" for name in node.input}
    return texts - others


def _inputs(node: Any, numbers: dict[str, str]) -> tuple[str, ...]:
    """Return the inputs of an operation, by the numbers of the operations that they come from.

    Control inputs come last and sorted by number, where TensorFlow sorts them by name.
    """
    data, controls = list[str](), list[str]()
    for name in node.input:
        source, *output = name.removeprefix("^").split(":")
        inputs = controls if name.startswith("^") else data
        inputs.append(":".join([numbers.get(source, source), *output]))
    return (*data, *(f"^{name}" for name in sorted(controls)))


def _attributes(node: Any) -> tuple[tuple[str, bytes], ...]:
    attributes = []
    for name in sorted(node.attr):
        value = node.attr[name]
        is_name = value.HasField("func") or (value.HasField("list") and value.list.func)
        if not (is_name or name.startswith("_") or name in ("shared_name", "container")):
            attributes.append((name, value.SerializeToString(deterministic=True)))
    return tuple(attributes)
