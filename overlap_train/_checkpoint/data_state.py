"""What data that Python makes depends on, taken so that another process makes the same batches again.

That is the state of Python's and NumPy's global generators, and of a `PyDataset` the attributes that have
changed since the training began, or what its own `get_state` or `state_dict` returns. Belongs to the training
thread; taken while nobody draws.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from overlap_train._copies import objects
from overlap_train._copies.generators import GeneratorValue
from overlap_train._copies.kept import KeptState, kept
from overlap_train._copies.model_variables import ModelVariables
from overlap_train._copies.objects import NotPutBackError
from overlap_train._copies.packing import pack
from overlap_train._copies.placing import Placing, members_of
from overlap_train._copies.values import Copies, Resource, copied, standing_in
from overlap_train._inspection.lookup import variables_of
from overlap_train._keras.generator_states import require_numpy_state, require_python_state
from overlap_train._keras.randomness import numpy_state, set_numpy_state

__all__ = ["DataState", "beside", "rows_that_tell"]

_DIGEST_BYTES = 1 << 26
_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class DataState:
    """Takes the state of a source of batches, and puts it back.

    Attributes:
        left_out: the names of attributes, and of what they hold, that cannot be taken and may change.
    """

    def __init__(self, source: Any, foreign: Collection[int] = (), *, of_all: bool = True) -> None:
        """Notes how the source stands as the training begins.

        Args:
            source: an object of the user's, or None for what has no state but that of global generators.
            foreign: the `id` of each variable that somebody else restores.
            of_all: whether global generators belong to it.
        """
        self._source = source
        self._of_all = of_all
        self._foreign = foreign
        self._methods = _speaking_methods(source)
        state = self._kept(copy_arrays=False)
        self._began = _digests(state.values)
        self.left_out = list(state.lost)

    def take(self) -> dict[str, Any]:
        """Returns the present state, in values that a checkpoint can hold; nothing of it is shared.

        Raises:
            TypeError: the source's own method returned something else.
        """
        state: dict[str, Any] = {}
        if self._of_all:
            state.update(python=random.getstate(), numpy=numpy_state())
        if self._methods:
            state["spoken"] = self._spoken(self._methods[0])
        elif self._source is not None:
            values = self._kept(copy_arrays=False).values
            digests = _digests(values)
            # A generator that has not been drawn from stands elsewhere in a process that has given no seed.
            changed = [
                name
                for name, digest in digests.items()
                if digest != self._began.get(name) or isinstance(values[name], GeneratorValue)
            ]
            state["attributes"] = dict(self._kept(changed, copy_arrays=True).values)
            state["unchanged"] = {name: digest for name, digest in digests.items() if name not in changed}
        return state

    def check(self, state: Mapping[str, Any]) -> None:
        """Makes sure that a state of a file is one, whether or not this source takes it; changes nothing.

        Raises:
            ValueError: it is none.
        """
        classes, seen = objects.class_for(self._source), set[int]()
        members = members_of(classes)
        for part in (state, state.get("position")):
            if not isinstance(part, (dict, NoneType)):
                raise ValueError(f"a position of type {type(part).__name__}")
            _require_states(part or {})
            for value in [*(part or {}).get("attributes", {}).values(), (part or {}).get("spoken")]:
                objects.check_objects(value, classes, seen)
                members.check(value)

    def put_back(self, state: Mapping[str, Any]) -> list[str]:
        """Puts a state of another process back.

        Returns:
            The names of attributes that had not changed there and are others here, or could not be put back;
            they stay as they are.

        Raises:
            ValueError: no source of this kind has kept such a state.
        """
        _require_states(state)
        placing, values, stay = self._settled(state.get("attributes", {}))
        told = self.told(state) if "spoken" in state and self._methods else None
        if self._of_all:
            random.setstate(state["python"])
            set_numpy_state(state["numpy"])
        objects.set_attributes(self._source, {name: placing.put(value) for name, value in values.items()})
        if "spoken" in state and self._methods:
            getattr(self._source, self._methods[1])(told)
        unchanged = state.get("unchanged", {})
        return [*stay, *(name for name, digest in unchanged.items() if digest != self._began.get(name))]

    def told(self, state: Mapping[str, Any]) -> Any:
        """Returns what the source itself told as a state was taken, made again.

        Raises:
            ValueError: it holds an object that cannot be made.
        """
        placing = Placing()
        placing.turn_to(objects.class_for(self._source))
        placing.settle()
        try:
            placing.require(state["spoken"], variables=False)
        except NotPutBackError as error:
            raise ValueError(str(error)) from error
        return placing.put(state["spoken"])

    def _names(self) -> list[str]:
        return [] if self._methods or self._source is None else list(variables_of(self._source))

    def _kept(self, names: Iterable[str] | None = None, *, copy_arrays: bool) -> KeptState:
        return kept(
            self._source,
            self._names() if names is None else names,
            Copies(),
            look_into=objects.attributes_of,
            foreign=self._foreign,
            copy_arrays=copy_arrays,
        )

    def _spoken(self, method: str) -> Any:
        """Returns a copy of what the source's own method returns."""
        own = getattr(self._source, method)()
        with contextlib.suppress(Resource):
            done = copied([own], look_into=objects.attributes_of)[0]
            if standing_in(done) is None:
                return done
        raise TypeError(
            f"{type(self._source).__name__}.{method} must return numbers, text, arrays and "
            f"lists, tuples and dicts of these; got {type(own).__name__}"
        )

    def _settled(self, attributes: Mapping[str, Any]) -> tuple[Placing, dict[str, Any], list[str]]:
        """Decides where attributes go; returns also those that can be put back, and what stays as it is."""
        placing, classes = Placing(), objects.class_for(self._source)
        live, now = variables_of(self._source), self._kept(copy_arrays=False).values
        values = {
            name: _of_earlier_releases(value, now.get(name))
            for name, value in attributes.items()
            if name in now or name not in live
        }
        placing.turn_to(classes)
        seen, members = set[int](), members_of(classes)
        for name, value in values.items():
            if not objects.keeps(type(self._source), name):
                raise ValueError(f"{name!r:.80} is no attribute of a {type(self._source).__name__}")
            objects.check_objects(value, classes, seen)
            members.check(value)
            placing.offer(live.get(name), value)
        placing.settle()
        for name in list(values):
            try:
                placing.require(values[name])
            except NotPutBackError:
                del values[name]
        return placing, values, [name for name in attributes if name not in values]


def beside(model: keras.Model, *, of_all: bool = True) -> Callable[[Any], DataState]:
    """Returns what notes the state of sources that may hold the model, which is restored otherwise."""
    return functools.partial(DataState, foreign=ModelVariables(model), of_all=of_all)


def rows_that_tell(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the rows of an array by which it is told from others: all, or of a large one 64 MiB of them.

    These lie evenly over the whole, the first and the last among them.
    """
    if not array.ndim or array.nbytes <= _DIGEST_BYTES:
        return array
    count = max(2, _DIGEST_BYTES // max(1, array.nbytes // len(array)))
    return array[np.unique(np.linspace(0, len(array) - 1, count).astype(np.int64))]


def _require_states(state: Mapping[str, Any]) -> None:
    """Makes sure that the parts of a state are of their kinds.

    Raises:
        ValueError: one is not.
    """
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


def _of_earlier_releases(value: Any, now: Any) -> Any:
    """Returns a value; where it is only the state of the generator that there is now, with its kind."""
    if not isinstance(now, GeneratorValue) or isinstance(value, GeneratorValue):
        return value
    return GeneratorValue(now.kind, {"bits": value, "seeds": None} if now.kind == "Generator" else value)


def _speaking_methods(source: Any) -> tuple[str, str] | None:
    """Returns the names of the methods by which a source tells and takes its state, if it has both."""
    for pair in _METHODS:
        if all(callable(getattr(source, name, None)) for name in pair):
            return pair
    return None


def _digests(values: Mapping[str, Any]) -> dict[str, bytes]:
    """Returns what tells each value from others, in this process and the next."""
    return {name: _digest(value) for name, value in values.items()}


def _digest(value: Any) -> bytes:
    arrays, described = pack([KeptState("", {"": value})], sorts_sets=True)
    digest = hashlib.blake2b(json.dumps(described).encode(), digest_size=16)
    for array in arrays.values():
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(np.ascontiguousarray(rows_that_tell(array)).tobytes())
    return digest.digest()
