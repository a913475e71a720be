"""What data that Python makes depends on, taken so that another process makes the same batches again.

That is the state of Python's and NumPy's global generators, and of a `PyDataset` the attributes that have
changed since the training began, or what its own `get_state` or `state_dict` returns. Belongs to the training
thread; taken while nobody draws.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable, Collection, Mapping
from types import NoneType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from overlap_train._copies.generators import GeneratorValue
from overlap_train._copies.packing import pack
from overlap_train._copies.restoring import Restorer
from overlap_train._copies.values import Copier, Foreign, NotPlainError, model_variables, parts_of, spoken_by
from overlap_train._inspection.lookup import variables_of
from overlap_train._keras.generator_states import require_numpy_state, require_python_state
from overlap_train._keras.randomness import numpy_state, set_numpy_state

__all__ = ["DataState", "beside", "rows_that_tell"]

_DIGEST_BYTES = 1 << 26
_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class DataState:
    """Takes the state of a source of batches, and puts it back.

    The source is an object of the user's, or None for what has no state but that of global generators; how it
    stands as the training begins is noted. `foreign` returns the `id` of each variable that is restored
    elsewhere, `of_all` says whether global generators belong to it.
    """

    def __init__(self, source: Any, foreign: Foreign = frozenset, *, of_all: bool = True) -> None:
        self._source = source
        self._of_all = of_all
        self._foreign = foreign
        self._methods = _speaking_methods(source)
        # `left_out` names what cannot be taken and may change.
        values, self.left_out = self._attributes()
        self._began = _digests(values)

    def take(self) -> dict[str, Any]:
        """Return the present state, in values that a checkpoint can hold; nothing of it is shared.

        A method of the source that returned something else is a TypeError.
        """
        state: dict[str, Any] = {}
        if self._of_all:
            state.update(python=random.getstate(), numpy=numpy_state())
        if self._methods:
            state["spoken"] = self._spoken(self._methods[0])
        elif self._source is not None:
            values, _ = self._attributes()
            digests = _digests(values)
            # A generator that has not been drawn from stands elsewhere in a process that has given no seed.
            changed = [
                name
                for name, digest in digests.items()
                if digest != self._began.get(name) or isinstance(values[name], GeneratorValue)
            ]
            state["attributes"] = self._attributes(changed, copy_arrays=True)[0]
            state["unchanged"] = {name: digest for name, digest in digests.items() if name not in changed}
        return state

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless a state of a file is one, whether or not this source takes it."""
        for part in (state, state.get("position")):
            if not isinstance(part, (dict, NoneType)):
                raise ValueError(f"a position of type {type(part).__name__}")
            _require_states(part or {})

    def put_back(self, state: Mapping[str, Any]) -> list[str]:
        """Put a state of another process back, or raise ValueError if it is of no such source.

        Returns the names of attributes that had not changed there and are others here, or could not be put
        back; they stay as they are.
        """
        _require_states(state)
        if self._of_all:
            random.setstate(state["python"])
            set_numpy_state(state["numpy"])
        restorer = Restorer(self._foreign, parts=self._parts)
        restorer.attributes(self._source, state.get("attributes", {}), "")
        if "spoken" in state and self._methods:
            getattr(self._source, self._methods[1])(self.told(state))
        unchanged = state.get("unchanged", {})
        return [
            *restorer.stay,
            *(name for name, digest in unchanged.items() if digest != self._began.get(name)),
        ]

    def told(self, state: Mapping[str, Any]) -> Any:
        """Return what the source itself told as a state was taken, made again."""
        return Restorer().put(None, state["spoken"])

    def _parts(self, value: Any) -> Mapping[str, Any] | None:
        return variables_of(value) if value is self._source else parts_of(value)

    def _attributes(
        self, names: Collection[str] | None = None, *, copy_arrays: bool = False
    ) -> tuple[dict[str, Any], list[str]]:
        """Copy attributes of the source, all by default; return also the names of what is not plain."""
        found = {} if self._methods or self._source is None else variables_of(self._source)
        parts = {name: part for name, part in found.items() if names is None or name in names}
        copy = Copier(self._foreign, copy_arrays=copy_arrays).object(self._source, parts)
        return dict(copy.attributes), list(copy.lost)

    def _spoken(self, method: str) -> Any:
        """Return a copy of what the source's own method returns."""
        try:
            return spoken_by(self._source, method)
        except NotPlainError as error:
            raise TypeError(
                f"{type(self._source).__name__}.{method} must return numbers, text, arrays and "
                f"lists, tuples and dicts of these; it returned a {error}"
            ) from error


def beside(model: keras.Model, *, of_all: bool = True) -> Callable[[Any], DataState]:
    """Return what notes the state of sources that may hold the model, which is restored otherwise."""
    return functools.partial(DataState, foreign=functools.partial(model_variables, model), of_all=of_all)


def rows_that_tell(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows of an array by which it is told from others: all, or of a large one 64 MiB of them.

    These lie evenly over the whole, the first and the last among them.
    """
    if not array.ndim or array.nbytes <= _DIGEST_BYTES:
        return array
    count = max(2, _DIGEST_BYTES // max(1, array.nbytes // len(array)))
    return array[np.unique(np.linspace(0, len(array) - 1, count).astype(np.int64))]


def _require_states(state: Mapping[str, Any]) -> None:
    """Raise ValueError unless the parts of a state are of their kinds."""
    try:
        if "python" in state:
            require_python_state(state["python"])
        if "numpy" in state:
            require_numpy_state(state["numpy"], legacy=True)
    except TypeError as error:
        raise ValueError(str(error)) from error
    kinds = (("begun", bool), ("attributes", dict), ("unchanged", dict))
    for name, kind in kinds:
        if name in state and type(state[name]) is not kind:
            raise ValueError(f"{name!r} is of type {type(state[name]).__name__}")
    named = [*state.get("attributes", {}), *state.get("unchanged", {})]
    if not all(isinstance(name, str) for name in named):
        raise ValueError("an attribute without a name")


def _speaking_methods(source: Any) -> tuple[str, str] | None:
    """Return the names of the methods by which a source tells and takes its state, if it has both."""
    for pair in _METHODS:
        if all(callable(getattr(source, name, None)) for name in pair):
            return pair
    return None


def _digests(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what tells each value from others, in this process and the next."""
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: Any) -> bytes:
    arrays, described = pack(value, "")
    digest = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
    for array in arrays.values():
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(rows_that_tell(array)).tobytes())
    return digest.digest()
