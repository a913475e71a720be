"""What a request has to bring for a model, and how what a user passes becomes that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from overlap_train._keras import models
from overlap_train._support.arguments import shown

__all__ = ["ModelInputs", "inputs_of"]

_SPECS = "pass input_specs=(tf.TensorSpec(...),)"


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model, flat, in Keras's order."""

    specs: tuple[tf.TensorSpec, ...]
    names: tuple[str, ...] = ()
    optional: tuple[bool, ...] = ()
    structure: Any = None  # the symbolic inputs as they are nested
    adjusts_rank: bool = False  # the last dimension may be left out, or added, where it is 1
    keeps_dtypes: bool = False  # custom code sees the dtypes

    @property
    def varies(self) -> bool:
        """Whether requests may differ in which inputs they bring, or in their dtypes."""
        return self.keeps_dtypes or any(self.optional)

    def flatten(self, model: str, x: Any) -> tuple[Any, ...]:
        """Return what a user passes as arrays with the batch first, None for what is left out."""
        flat = keras.tree.flatten(self._in_order(model, x))
        if len(flat) != len(self.specs):
            listed = isinstance(x, (list, tuple))
            told = "; a list is one value for each input: pass an array" if listed else ""
            raise ValueError(f"x of {model!r} takes {len(self.specs)} inputs, got {len(flat)}{told}")
        arrays = tuple(self._array(model, number, value) for number, value in enumerate(flat))
        shapes = [array.shape for array in arrays if array is not None]
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
                taken = f"a dict with {list(self.structure)}"
                raise ValueError(f"x of {model!r} takes {taken}, got {shown(type(x))}")
            return x
        missing = [name for name in self.names if name not in x]
        if isinstance(self.structure, dict) or not self.names:
            return x
        if missing:
            taken = f"inputs named {list(self.names)}"
            raise ValueError(f"x of {model!r} takes {taken}, got {sorted(map(str, x))}")
        return [x[name] for name in self.names]

    def _array(self, model: str, number: int, value: Any) -> Any:
        spec, name = self.specs[number], self.names[number] if self.names else str(number)
        if value is None:
            if not (self.optional and self.optional[number]):
                raise ValueError(f"x of {model!r}: the input {name!r} is not optional, but None was passed")
            return None
        if isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value)
        array = _as_array(model, name, value, None)
        wants_text = spec.dtype == tf.string
        lost = array.dtype.kind == "c" and not spec.dtype.is_complex  # the imaginary part
        if lost or (wants_text != (array.dtype.kind in "OSUT") and (wants_text or array.dtype.kind in "SUT")):
            raise TypeError(f"x of {model!r}: the input {name!r} takes {spec.dtype.name}, got {array.dtype}")
        if not self._keeps(array, spec):
            array = _as_array(model, name, value, spec.dtype.as_numpy_dtype)
        array = self._ranked(array, spec)
        if array.ndim and self.adjusts_rank and not spec.shape.is_compatible_with(array.shape):
            taken = f"the input {name!r} takes {spec.shape}"
            raise ValueError(f"x of {model!r}: {taken}, got the shape {array.shape}")
        return array

    def _keeps(self, array: Any, spec: tf.TensorSpec) -> bool:
        """Whether an array reaches the model in its own dtype; among floats the model's is taken."""
        return self.keeps_dtypes and array.dtype.kind in "iub" and array.dtype != spec.dtype.as_numpy_dtype

    def _ranked(self, array: Any, spec: tf.TensorSpec) -> Any:
        """Return an array with the rank that the model takes, as Keras makes it."""
        if not self.adjusts_rank:
            return array
        rank = len(spec.shape)
        if array.ndim == rank + 1 and array.shape[-1] == 1:
            return array[..., 0]
        if array.ndim == rank - 1 and spec.shape[-1] == 1:
            return array[..., np.newaxis]
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
    if specs or not symbolic:
        if not specs:
            what = "a Sequential model that is not built" if _is_unbuilt(model) else "a subclassed model"
            remedy = "build it, or begin it with keras.Input" if _is_unbuilt(model) else _SPECS
            raise ValueError(f"{name}: {what} does not say what it reads; {remedy}")
        return ModelInputs(tuple(specs), structure=models.input_structure(model))
    own_code = models.own_code_of(model) is not None
    return ModelInputs(
        tuple(tf.TensorSpec((None, *x.shape[1:]), x.dtype) for x in symbolic),
        tuple(x.name for x in symbolic),
        tuple(models.is_optional(x) for x in symbolic),
        models.input_structure(model),
        adjusts_rank=not own_code,
        keeps_dtypes=own_code,
    )


def _as_array(model: str, name: str, value: Any, dtype: Any) -> Any:
    """Returns a value as an array; raises TypeError for what is none, such as a ragged tensor."""
    try:
        return np.asarray(value, dtype)
    except Exception as error:  # whatever an object of the user's raises, it is no array
        raise TypeError(
            f"x of {model!r}: the input {name!r} takes an array, got {shown(value)} ({error})"
        ) from error


def _is_unbuilt(model: keras.Model) -> bool:
    return isinstance(model, keras.Sequential) and not model.built
