"""Lookup tables that a step reads and whose content can change: no snapshot holds it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from overlap_train._inspection.effects import Effect
from overlap_train._inspection.graph import handle_spec, nodes_of


def find_tables(concrete: Any) -> tuple[Effect, ...]:
    """Return an effect for each table that a concrete function captured and that may change.

    A table's handle does not show its kind, so we insert no entries at all into it: an immutable one, such
    as `tf.lookup.StaticHashTable` and the vocabulary of a layer, refuses.
    """
    signatures = sorted(_signatures(concrete.graph))
    if not signatures:
        return ()
    handles = {
        id(tensor): tensor
        for tensor in concrete.captured_inputs
        if tensor.dtype == tf.resource and handle_spec(tensor) is None and hasattr(tensor, "numpy")
    }
    return tuple(
        Effect(
            "LookupTableFind",
            f"table {number}",
            "reads a table that a callback may change",
            "read a tf.lookup.StaticHashTable, or keep the values in a variable (add_weight)",
        )
        for number, handle in enumerate(handles.values())
        if any(_takes_entries(handle, *dtypes) for dtypes in signatures)
    )


def _takes_entries(table: Any, keys: int, values: int) -> bool:
    with tf.init_scope():
        try:
            tf.raw_ops.LookupTableInsertV2(
                table_handle=table,
                keys=tf.constant([], tf.as_dtype(keys)),
                values=tf.constant([], tf.as_dtype(values)),
            )
        except tf.errors.InvalidArgumentError as error:
            # A table of vectors takes other values; anything else is no table, or one of other types.
            return "Expected shape" in str(error)
        except tf.errors.OpError:
            return False
    return True


def _signatures(graph: Any) -> set[tuple[int, int]]:
    """Return the types of keys and values, as enum numbers, of the look-ups in a graph."""
    finds = (node.attr for node in nodes_of(graph) if node.op.startswith("LookupTableFind"))
    return {(attributes["Tin"].type, attributes["Tout"].type) for attributes in finds}
