"""What a model computes of a batch, operation by operation, to tell whether a copy of it does the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from overlap_train._inspection.graph import computation
from overlap_train._inspection.traced import TracedFunction
from overlap_train._keras import models as keras_models

__all__ = ["CopyRefusedError", "digest_of", "require_same_computation"]


class CopyRefusedError(Exception):
    """Says why a model has no private copy; not for users."""


@dataclass(frozen=True)
class _Computation:
    """What a model computes.

    Attributes:
        graph: comparable, whatever is called how.
        constants: arrays that it has captured.
    """

    graph: tuple[Any, ...]
    constants: tuple[Any, ...]


def require_same_computation(model: keras.Model, copy: keras.Model, x_spec: Any) -> None:
    """Compares what two models compute of a batch, operation by operation.

    Raises:
        CopyRefusedError: it is not the same, or cannot be compared.
    """
    ours, theirs = _computed(model, x_spec, "its call"), _computed(copy, x_spec, "the call of its copy")
    alike = len(ours.constants) == len(theirs.constants)
    if not alike or not all(map(np.array_equal, ours.constants, theirs.constants)):
        raise CopyRefusedError("its copy computes something else")
    if ours.graph != theirs.graph:
        raise CopyRefusedError("its copy computes something else")


def digest_of(model: keras.Model, x_spec: Any) -> str:
    """Returns what tells the computation of a model from others, in this process and the next.

    Raises:
        CopyRefusedError: it depends on what no copy has.
    """
    found = _computed(model, x_spec, "its call")
    digest = hashlib.sha256(repr(found.graph).encode())
    for constant in map(np.asarray, found.constants):
        digest.update(f"{constant.shape} {constant.dtype}".encode() + constant.tobytes())
    return digest.hexdigest()


def _computed(model: keras.Model, x_spec: Any, whose: str) -> _Computation:
    try:
        traced = TracedFunction(lambda x: model(x, training=False), x_spec)
    except Exception as error:  # of the user's own code
        raise CopyRefusedError(
            f"calling it on a batch fails, so that a copy cannot be compared: {error}"
        ) from error
    for effect in traced.effects:
        raise CopyRefusedError(f"its call {effect}")
    own = {id(handle) for v in model.variables for handle in keras_models.variable_handles(v)}
    foreign = [v.name for v in traced.variables if id(v.handle) not in own]
    if foreign:
        raise CopyRefusedError(f"{whose} reads variables outside the model ({', '.join(foreign[:3])})")
    return _Computation(computation(traced.graph), tuple(traced.constants))
