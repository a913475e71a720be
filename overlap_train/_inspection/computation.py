"""The computation of a traced graph, to be compared with that of another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf


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
