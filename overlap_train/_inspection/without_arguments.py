"""What a traced function changes whatever its arguments are.

Keras before 3.16 does that once more where a step finds that the data has ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from overlap_train._inspection.graph import captures

# Operations that change variables, themselves or in what they call.
_CHANGES = re.compile("Assign(Add|Sub)?VariableOp|RngReadAndSkip|RngSkip|If|While|StatefulPartitionedCall")
# Calls of functions, which TensorFlow puts in place of the call.
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def without_arguments(concrete: Any) -> Callable[[], Any] | None:
    """Return a compiled call of what a function changes whatever its arguments are; None if that is nothing.

    So a function changes what it counts, but no variable to which it writes what comes of an argument.
    """
    by_name = {concrete.graph.inputs[index].name: tensor for index, tensor in captures(concrete)}
    parts = list(_parts_without_arguments(concrete.graph, by_name))
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
