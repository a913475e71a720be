"""How the specs of two kinds of batches are related."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_SCALAR = tf.TensorShape([])


def relaxed(spec: Any, other: Any) -> Any:
    """Return the most specific spec of both kinds of batches, or the first as it is if there is none."""
    leaves = [a if a == b else _supertype(a, b) for a, b in _pairs(spec, other)]
    # For tensors of any rank Keras traces, too, and fails.
    is_related = all(leaf is not None and getattr(leaf, "shape", _SCALAR).rank is not None for leaf in leaves)
    return tf.nest.pack_sequence_as(spec, leaves) if leaves and is_related else spec


def _supertype(spec: Any, other: Any) -> Any:
    return spec.most_specific_common_supertype([other]) if isinstance(spec, tf.TypeSpec) else None


def is_subtype(spec: Any, other: Any) -> bool:
    """Whether every batch of one kind is one of another."""
    pairs = _pairs(spec, other)
    return bool(pairs) and all(
        a == b or (hasattr(a, "is_subtype_of") and a.is_subtype_of(b)) for a, b in pairs
    )


def _pairs(spec: Any, other: Any) -> list[tuple[Any, Any]]:
    """Return the specs of two kinds of batches tensor by tensor; none where their structures differ."""
    try:
        tf.nest.assert_same_structure(spec, other)
    except (TypeError, ValueError):
        return []
    return list(zip(tf.nest.flatten(spec), tf.nest.flatten(other), strict=True))
