"""The state that the data of a training holds in Python: taken for a checkpoint, and put back.

For data that Python makes it is what another process needs to make the same batches again: the state of
Python's and NumPy's global generators, and of a `PyDataset` the attributes that have changed since the
training began, or what its own `get_state` or `state_dict` returns. It is taken while nothing draws.

Of the model it is told which plain attributes a training sets on it, such as a callback's
`self.model.best_epoch = 3`: no checkpoint holds these. Belongs to the training thread.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from overlap_train._callbacks.restoring import Restorer
from overlap_train._callbacks.values import (
    GET_STATE,
    Copier,
    Foreign,
    Node,
    NotPlainError,
    ObjectValue,
    model_variables,
    parts_of,
)
from overlap_train._checkpoint.packing import split
from overlap_train._inspection.attributes import variables_of
from overlap_train._keras.copies import base_attributes
from overlap_train._keras.randomness import numpy_state, set_numpy_state

_DIGEST_BYTES = 1 << 26
_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class DataState:
    """Takes the state of a source of batches, and puts it back.

    The source is the user's object, or None for data that has no state but that of global generators; its
    state as the training begins is noted. `foreign` returns the `id` of each variable that is restored
    elsewhere, `of_all` says whether the global generators belong to the state. `left_out` has the names of
    attributes that cannot be taken and may change.
    """

    def __init__(self, source: Any, foreign: Foreign = frozenset, *, of_all: bool = True) -> None:
        self._source = source
        self._of_all = of_all
        self._foreign = foreign
        pairs = (pair for pair in _METHODS if all(callable(getattr(source, name, None)) for name in pair))
        self._methods = next(pairs, None)
        copies = self._copies()
        self.left_out = [name for copy in copies for name in copy.lost]
        self._initial = _digests(copies)

    def take(self) -> dict[str, Any]:
        """Return the present state, in values that a checkpoint can hold; nothing of it is shared.

        A method of the source that returned something else is a TypeError.
        """
        state: dict[str, Any] = {}
        if self._of_all:
            state.update(python=random.getstate(), numpy=numpy_state())
        if self._methods:
            try:
                reported = Copier().reported(self._source, self._methods[0])
            except NotPlainError as error:
                raise TypeError(
                    f"{type(self._source).__name__}.{self._methods[0]} must return numbers, text, arrays and "
                    f"lists, tuples and dicts of these; it returned a {error}"
                ) from error
            state["spoken"] = ObjectValue("", {GET_STATE: reported})
        elif self._source is not None:
            digests = _digests(copies := self._copies())
            nodes = {name: node for copy in copies for name, node in copy.attributes.items()}
            # Without a seed, a generator that has not been drawn from has another state in each process.
            drawn = [name for name, node in nodes.items() if isinstance(node, dict) and "generator" in node]
            changed = [n for n, digest in digests.items() if n in drawn or digest != self._initial.get(n)]
            state["attributes"] = self._attributes(changed)
            state["unchanged"] = {name: digest for name, digest in digests.items() if name not in changed}
        return state

    def put_back(self, state: Mapping[str, Any]) -> list[str]:
        """Put a state of another process back.

        Returns the names of attributes that had not changed there and differ here, or could not be put back;
        they stay as they are.
        """
        if self._of_all and "python" in state:
            random.setstate(state["python"])
        if self._of_all and "numpy" in state:
            set_numpy_state(state["numpy"])
        restorer = Restorer(self._foreign, parts=self._parts)
        if "attributes" in state:
            restorer.attributes(self._source, state["attributes"].attributes, "")
        if "spoken" in state and self._methods:
            reported = Restorer().put(None, state["spoken"].attributes[GET_STATE])
            getattr(self._source, self._methods[1])(reported)
        unchanged = state.get("unchanged", {}).items()
        return [*restorer.stay, *(name for name, digest in unchanged if digest != self._initial.get(name))]

    def _parts(self, value: Any) -> Mapping[str, Any] | None:
        return variables_of(value) if value is self._source else parts_of(value)

    def _copies(self) -> list[ObjectValue]:
        """Copy each attribute of the source by itself, to be looked at."""
        names = () if self._methods or self._source is None else variables_of(self._source)
        return [self._attributes([name], copy_arrays=False) for name in names]

    def _attributes(self, names: Collection[str], *, copy_arrays: bool = True) -> ObjectValue:
        parts = {name: part for name, part in variables_of(self._source).items() if name in names}
        return Copier(self._foreign, copy_arrays=copy_arrays).object(self._source, parts)


def beside(model: keras.Model, *, of_all: bool = True) -> Callable[[Any], DataState]:
    """Return `DataState` for sources that may hold the model, whose variables are restored elsewhere."""
    return functools.partial(DataState, foreign=functools.partial(model_variables, model), of_all=of_all)


def sampled_rows(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows that an array is told by: all, or of a large one 64 MiB from all over it."""
    if not array.ndim or array.nbytes <= _DIGEST_BYTES:
        return array
    count = max(2, _DIGEST_BYTES // max(1, array.nbytes // len(array)))
    return array[np.unique(np.linspace(0, len(array) - 1, count).astype(np.int64))]


def _digests(copies: Iterable[ObjectValue]) -> dict[str, bytes]:
    """Return a digest of each attribute, which is the same in every process."""
    return {name: _digest(node) for copy in copies for name, node in copy.attributes.items()}


def _digest(node: Node) -> bytes:
    arrays, packed = split(node, "")
    digest = hashlib.blake2b(json.dumps(packed).encode(), digest_size=16)
    for array in arrays.values():
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(sampled_rows(array)).tobytes())
    return digest.digest()


_PLAIN = (bool, int, float, str, type(None))
# What Keras and the trainer set while they train.
_OF_A_RUN = frozenset(("built", "history", "stop_evaluating", "stop_training", "trainable"))


def keras_attributes() -> frozenset[str]:
    """Return the names of attributes that Keras and the trainer set on a model or a layer."""
    return base_attributes() | _OF_A_RUN


def plain_attributes(model: keras.Model) -> dict[str, str]:
    """Return the plain attributes of a model that neither Keras nor the trainer sets, as texts by name."""
    known = keras_attributes()
    own = {name: value for name, value in variables_of(model).items() if not name.startswith("_")}
    return {n: repr(value) for n, value in own.items() if n not in known and type(value) in _PLAIN}
