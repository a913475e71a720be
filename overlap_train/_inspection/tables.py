"""Which lookup tables a traced function reads whose content can change: no snapshot holds that."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from overlap_train._inspection.effects import Effect
from overlap_train._inspection.graph import handle_spec, signatures_of

__all__ = ["find_tables"]


def find_tables(concrete: Any) -> tuple[Effect, ...]:
    """Returns an effect for each table that a concrete function captured and that entries can be put into.

    TensorFlow tells no kind of table from another by its handle, so each is asked to take no entry at all:
    one that is made for good, as `tf.lookup.StaticHashTable` and the vocabulary of a layer, refuses.
    """
    signatures = sorted(signatures_of(concrete.graph, "LookupTableFind", ("Tin", "Tout")))
    handles = {
        id(tensor): tensor
        for tensor in concrete.captured_inputs
        if tensor.dtype == tf.resource and handle_spec(tensor) is None and hasattr(tensor, "numpy")
    }
    if not signatures:
        return ()
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
            # A table of vectors would take other values; anything else is no table, or one of other types.
            return "Expected shape" in str(error)
        except tf.errors.OpError:
            return False
    return True
